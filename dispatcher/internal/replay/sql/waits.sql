-- Says what a replay waits for that is not of it: events which no dispatcher serves, or which their key holds up.
-- It looks at the first items of each state.
-- $1 replay; $2 how many items.
select reason, count(*), (array_agg(event::text order by seq))[1]
from (
    select item.seq, case
            when served.blocks is null then 'no_dispatcher'
            when dead.event_id is not null then 'earlier_dead'
        end as reason, coalesce(dead.event_id, item.event_id) as event
    from (
        select event_id, key_hash, seq from outbox.outbox_replay_items
        where replay_id = $1::uuid and state = 'requeued'
        order by seq, dead_letter_id limit $2::integer
    ) as item
    join outbox.outbox_events as event on event.id = item.event_id and event.status = 'pending'
    cross join lateral (
        select bool_or(blocks) as blocks from outbox.outbox_workers as worker
        where worker.namespace = event.namespace and (topics = '{}' or event.topic = any (topics)) and seen_at > now() - interval '1 minute'
    ) as served
    left join lateral (
        select dead_letter.event_id from outbox.outbox_dead_letters as dead_letter
        where dead_letter.key_hash = item.key_hash and dead_letter.seq < item.seq and dead_letter.resolution is null and served.blocks
          and not exists (
              select from outbox.outbox_replay_items as turn
              where turn.dead_letter_id = dead_letter.id and turn.replay_id = $1::uuid and turn.state = 'waiting'
          )
        order by dead_letter.seq limit 1
    ) as dead on true
    union all
    select item.seq, 'earlier_live', live.id
    from (
        select key_hash, seq from outbox.outbox_replay_items
        where replay_id = $1::uuid and state = 'waiting'
        order by seq, dead_letter_id limit $2::integer
    ) as item
    cross join lateral (
        select event.id from outbox.outbox_events as event
        where event.live and event.key_hash = item.key_hash and event.seq < item.seq
          and not exists (
              select from outbox.outbox_replay_items as before
              where before.replay_id = $1::uuid and before.key_hash = item.key_hash and before.seq = event.seq and before.state = 'requeued'
          )
        order by event.seq limit 1
    ) as live
    where exists (select from outbox.outbox_replays where id = $1::uuid and action = 'replay' and ordering = 'key')
) as found
where reason is not null
group by reason
order by reason
