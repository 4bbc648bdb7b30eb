-- Counts what an operation would do, and what it would leave, by the reason. CONDITION is that of the filter.
-- $1 action; $2 how many at most, null for all.
select count(*) filter (where left_out is null), count(*) filter (where left_out = 'claimed'),
    count(*) filter (where left_out = 'gone'), count(*) filter (where left_out = 'not_dead')
from (
    select case
        when coalesce(outbox.outbox_replay_claims(l.replay_id, l.replay_state), false) then 'claimed'
        when $1::text = 'discard' then null
        when e.id is null then 'gone'
        when e.status <> 'dead' then 'not_dead'
    end as left_out
    from outbox.outbox_dead_letters as l
    left join outbox.outbox_events as e on e.id = l.event_id
    where CONDITION
    order by coalesce(l.seq, 0), l.id limit $2::integer
) as matched
