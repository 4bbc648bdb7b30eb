-- Finds the outcomes of events that were put back: a later dead letter means that it is dead again; a row that is delivered,
-- or gone since delivered rows are not kept, means that it was delivered.
-- $1 replay.
select dead_letter_id, state
from (
    select item.dead_letter_id, case
        when exists (
            select from outbox.outbox_dead_letters as later
            where later.event_id = item.event_id and later.id > item.dead_letter_id
        ) then 'dead_again'
        when event.id is null or event.status = 'delivered' then 'delivered'
        when event.status = 'dead' then 'dead_again'
    end as state
    from outbox.outbox_replay_items as item
    left join outbox.outbox_events as event on event.id = item.event_id
    where item.replay_id = $1::uuid and item.state = 'requeued'
) as outcome
where state is not null
