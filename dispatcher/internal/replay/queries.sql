-- name: begin
-- Begins an operation on the dead letters of the filter, in the order of insertion: its index then grows at its end.
-- CONDITION is that of the filter.
-- $1 id; $2 namespace; $3 action; $4 reason; $5 who requested it; $6 filter; $7 rate; $8 canary; $9 the percentage of
-- failures at which it stops; $10 how many at most, null for all.
select outbox.outbox_replay_begin($1::uuid, $2::text, $3::text, $4::text, $5::text, $6::jsonb, $7::integer, $8::integer, $9::integer, array(
    select l.id from outbox.outbox_dead_letters as l
    where CONDITION
    order by coalesce(l.seq, 0), l.id limit $10::integer
))

-- name: dry_run
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

-- name: free
-- The condition that no open replay has claimed a dead letter.
not coalesce(outbox.outbox_replay_claims(l.replay_id, l.replay_state), false)

-- name: missing
-- Finds which ids are of no dead letter that an operation may choose: an array. CONDITION is that of the filter.
-- $1 the ids, of events or of dead letters.
with found as materialized (
    select l.event_id::text as event, l.id::text as id from outbox.outbox_dead_letters as l
    where CONDITION
)
select array(select wanted from unnest($1::text[]) as wanted where not exists (select from found where lower(wanted) in (event, id) or ltrim(wanted, '+0') = id))

-- name: last
-- The condition that a dead letter is the last of its event: an earlier one that is still open was passed by. A subquery, which
-- is one probe for each whatever the planner believes; it makes "not exists" a join.
l.id = (select max(later.id) from outbox.outbox_dead_letters as later where later.event_id = l.event_id)

-- name: read
-- Reads operations: the one of an id, or the newest of a namespace. Running means that it is open, and a process was there
-- in the last minute.
-- $1 id, null for all; $2 namespace, empty for all; $3 how many.
select id, namespace, action, rate, canary, began_at, paced_at, finished_at, coalesce(stopped_reason, ''), coalesce(last_error, ''),
    waiting, pending, failing, delivered, dead_again, discarded, reopened, claimed, gone, not_dead, stopped,
    reason, requested_by, login, now(), seen_at between now() - interval '1 minute' and now() + interval '1 minute'
from outbox.outbox_replays
where ($1::uuid is null or id = $1::uuid) and ($2::text = '' or namespace = $2::text)
order by began_at desc, id limit $3::integer

-- name: step
-- Puts back the next dead letters of a replay: how many had their turn.
-- $1 replay; $2 how many at most.
select outbox.outbox_replay_step($1::uuid, $2::integer)

-- name: observe
-- Reads the outcomes of what a replay has put back: whether one was new.
-- $1 replay.
select outbox.outbox_replay_observe($1::uuid)

-- name: waits
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
        select bool_or(ordered) as ordered, bool_or(blocks) as blocks, bool_and(paused) as paused, max(coalesce(paused_topics ->> event.topic, paused_topics ->> '')) as why
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
        where before.live and before.key_hash = item.key_hash and before.seq < item.seq and served.ordered
          and not exists (
              select from outbox.outbox_dead_letters where event_id = before.id and replay_id = $1::uuid and replay_state = 'requeued'
          )
        order by before.seq limit 1
    ) as live on true
    union all
    select 0, other.id, null, 'other_replay'
    from outbox.outbox_replays as mine
    join outbox.outbox_replays as other on other.namespace = mine.namespace and other.topics && mine.topics and other.id <> mine.id
        and other.waiting > 0 and other.seen_at between now() - interval '1 minute' and now() + interval '1 minute'
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

-- name: stop
-- Gives up what waits of a replay.
-- $1 replay; $2 why.
select outbox.outbox_replay_stop($1::uuid, $2::text)
