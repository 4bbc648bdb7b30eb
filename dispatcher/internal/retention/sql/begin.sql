-- Begins a run, or continues the one that another worker has begun.
-- $1 name; $2 namespace, empty for all; $3 age of delivered rows.
insert into outbox.outbox_sweeps as sweep (name, namespace, delivered_after, began_at, pages)
values ($1::text, $2::text, $3::interval, now(), pg_relation_size('outbox.outbox_events') / current_setting('block_size')::bigint)
on conflict (name) do update
set began_at = coalesce(sweep.began_at, excluded.began_at),
    pages = excluded.pages, namespace = excluded.namespace, delivered_after = excluded.delivered_after,
    position = case when sweep.began_at is null then 0 else sweep.position end
returning pages, position
