-- Says what a replay waits for: why the first events that it has put back have no outcome, and which other replay goes
-- first.
-- $1 replay; $2 how many events.
select reason, count(*), (array_agg(event::text order by seq))[1], coalesce((array_agg(detail order by seq))[1], '')
from (
    select item.seq, coalesce(dead.event_id, live.id, item.event_id) as event, served.why as detail, case
            when event.status = 'processing' then 'delivering'
            when served.blocks is null then 'no_dispatcher'
            when served.paused then 'paused'
            when served.why is not null then 'topic_paused'
            when dead.event_id is not null then 'earlier_dead'
            when live.id is not null then 'earlier_live'
        end as reason
    from (
        select event_id, key_hash, coalesce(seq, 0) as seq from outbox.outbox_dead_letters
        where replay_id = $1::uuid and replay_state = 'requeued'
        order by coalesce(seq, 0), id limit $2::integer
    ) as item
    join outbox.outbox_events as event on event.id = item.event_id and event.live
    cross join lateral (
        select bool_or(blocks) as blocks, bool_and(paused) as paused, max(coalesce(paused_topics ->> event.topic, paused_topics ->> '')) as why
        from outbox.outbox_workers as worker
        where worker.namespace = event.namespace and (topics = '{}' or event.topic = any (topics)) and seen_at > now() - interval '1 minute'
    ) as served
    left join lateral (
        select event_id from outbox.outbox_dead_letters as dead_letter
        where dead_letter.key_hash = item.key_hash and dead_letter.seq < item.seq and dead_letter.resolution is null and served.blocks
        order by dead_letter.seq limit 1
    ) as dead on true
    left join lateral (
        select id from outbox.outbox_events as before
        where before.live and before.key_hash = item.key_hash and before.seq < item.seq
          and not exists (
              select from outbox.outbox_dead_letters where event_id = before.id and replay_id = $1::uuid and replay_state = 'requeued'
          )
        order by before.seq limit 1
    ) as live on true
    union all
    select 0, other.id, null, 'other_replay'
    from outbox.outbox_replays as mine
    join outbox.outbox_replays as other on other.namespace = mine.namespace and other.topics && mine.topics and other.id <> mine.id
        and other.waiting > 0 and other.seen_at > now() - interval '1 minute'
    where mine.id = $1::uuid and mine.waiting > 0 and (
        select coalesce(seq, 0) from outbox.outbox_dead_letters where replay_id = other.id and replay_state = 'waiting'
        order by coalesce(seq, 0), id limit 1
    ) < (
        select coalesce(seq, 0) from outbox.outbox_dead_letters where replay_id = mine.id and replay_state = 'waiting'
        order by coalesce(seq, 0), id limit 1
    )
) as found
where reason is not null
group by reason
order by reason
