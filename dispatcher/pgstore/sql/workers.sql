-- name: heartbeat
-- Notes that a worker runs, and removes the rows of workers that were not seen for a day, and rates that were not used for one. Returns the worker's part of the
-- dispatcher's rate limits, and how many workers of the dispatcher are live (CONTRACT C-36).
-- $1 worker; $2 its dispatcher; $3 namespace; $4 topics, none for all; $5 version; $6 whether a dead
-- event blocks its key; $7 delivered and $8 failed in the last 5 minutes; $9 and $10 in the last hour; $11 whether it
-- is paused; $12 why topics are paused, as JSON; $13 how long it is live; $14 whether
-- events wait for earlier ones of their key; $15 the part that it may still use; $16 the topics that it copies to.
with gone as (
    delete from outbox.outbox_workers
    where seen_at < now() - interval '1 day' and worker <> $1::uuid
),
unused as ( -- by a worker that is new
    delete from outbox.outbox_rates
    where namespace = $3::text and dispatcher = $2::text and used_until < now() - interval '1 day'
      and not exists (select from outbox.outbox_workers where worker = $1::uuid)
),
-- The rows of the dispatcher's other workers hold still: a part that one gives up is taken once. Who is new has no row yet,
-- and so no part.
workers as materialized (
    select worker, paused, part, live_until > now() and seen_at < now() + interval '1 minute' as live
    from outbox.outbox_workers
    where namespace = $3::text and dispatcher = $2::text
    order by worker
    for update
),
others as (
    select count(*) filter (where not paused) as live, coalesce(sum(part), 0) as parts from workers
    where worker <> $1::uuid and live
),
mine as (
    select live, case when not $11::boolean and exists (select from workers where worker = $1::uuid) then greatest(0, least(1.0 / (live + 1), 1 - parts)) else 0 end as part
    from others
)
-- What the worker gives up is its own until the next heartbeat: it uses it until it has the response, which may be lost.
insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, version, ordered, blocks, delivered_5m, failed_5m, delivered_1h, failed_1h, paused, paused_topics, live_until, part, copies)
select $1::uuid, $2::text, $3::text, coalesce($4::text[], '{}'), $5::text, $14::boolean, $6::boolean, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::boolean, $12::text::jsonb, now() + $13::interval, greatest(part, $15::double precision), coalesce($16::text[], '{}')
from mine
on conflict (worker) do update
set dispatcher = excluded.dispatcher, topics = excluded.topics, version = excluded.version, ordered = excluded.ordered, blocks = excluded.blocks, paused = excluded.paused, paused_topics = excluded.paused_topics, seen_at = now(),
    delivered_5m = excluded.delivered_5m, failed_5m = excluded.failed_5m, delivered_1h = excluded.delivered_1h, failed_1h = excluded.failed_1h,
    live_until = excluded.live_until, part = excluded.part, copies = excluded.copies
returning (select part from mine), (select live from mine) + case when paused then 0 else 1 end

-- name: leave
-- Removes the row of a worker that stops.
-- $1 worker.
delete from outbox.outbox_workers where worker = $1::uuid

-- name: sharing
-- Names the other dispatchers that were seen a moment ago, are not paused, and deliver topics of this one too: five at most.
-- $1 namespace; $2 this dispatcher; $3 its topics, none for all.
select distinct dispatcher
from outbox.outbox_workers
where namespace = $1::text
  and dispatcher <> $2::text
  and not paused
  and seen_at > now() - interval '1 minute'
  and (topics = '{}' or coalesce(cardinality($3::text[]), 0) = 0 or topics && $3::text[])
order by dispatcher
limit 5

-- name: writers
-- Lists the transactions that may still commit rows with a seq that they have drawn: to draw one, a transaction locks the
-- sequence until it ends. Which run of the server it is comes with them: numbers that a crash forgot are drawn again.
select coalesce(array_agg(virtualtransaction), '{}'), concat(extract(epoch from pg_postmaster_start_time()), ' ', pg_last_wal_replay_lsn())
from pg_locks
where locktype = 'relation'
  and database = (select oid from pg_database where datname = current_database())
  and relation = pg_get_serial_sequence('outbox.outbox_events', 'seq')::regclass

-- name: fence
-- The last of a claim's settings: it ends the transaction with an error of its own while the fence is down (CONTRACT C-27).
-- What empties the table ends this session too, so one look is enough for the transaction.
, case when exists (select from outbox.outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin)
    then true else outbox.outbox_fence_down() end

-- name: fence_raise
select outbox.outbox_fence_raise()

-- name: sequences_behind
select outbox.outbox_sequences_behind()
