-- Notes that a worker runs, and removes the rows of workers that were not seen for a day.
-- $1 worker; $2 its dispatcher; $3 namespace; $4 topics, none for all; $5 version; $6 whether a dead
-- event blocks its key; $7 delivered and $8 failed in the last 5 minutes; $9 and $10 in the last hour; $11 whether it
-- is paused; $12 why topics are paused, as JSON.
with gone as (
    delete from outbox.outbox_workers
    where seen_at < now() - interval '1 day' and worker <> $1::uuid
)
insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, version, blocks, delivered_5m, failed_5m, delivered_1h, failed_1h, paused, paused_topics)
values ($1::uuid, $2::text, $3::text, coalesce($4::text[], '{}'), $5::text, $6::boolean, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::boolean, $12::text::jsonb)
on conflict (worker) do update
set dispatcher = excluded.dispatcher, topics = excluded.topics, version = excluded.version, blocks = excluded.blocks, paused = excluded.paused, paused_topics = excluded.paused_topics, seen_at = now(),
    delivered_5m = excluded.delivered_5m, failed_5m = excluded.failed_5m, delivered_1h = excluded.delivered_1h, failed_1h = excluded.failed_1h
