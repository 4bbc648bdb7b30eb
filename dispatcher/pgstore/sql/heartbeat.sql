-- Notes that a worker runs, and removes the rows of workers that were not seen for a day.
-- $1 worker; $2 its dispatcher; $3 namespace; $4 topics, none for all; $5 version; $6 whether a dead
-- event blocks its key.
with gone as (
    delete from outbox.outbox_workers
    where seen_at < now() - interval '1 day' and worker <> $1::uuid
)
insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, version, blocks)
values ($1::uuid, $2::text, $3::text, coalesce($4::text[], '{}'), $5::text, $6::boolean)
on conflict (worker) do update
set dispatcher = excluded.dispatcher, topics = excluded.topics, version = excluded.version, blocks = excluded.blocks, seen_at = now()
