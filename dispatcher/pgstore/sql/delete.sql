-- Removes delivered rows instead of marking them: retention 0 (CONTRACT C-23, C-60).
-- $1 ids of the rows, $2 the number of their lease; $3 worker.
-- The conditions are as in ack.sql. The journal hears that it is a dispatcher who removes them.
with acked as (
    delete from outbox.outbox_events
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
      and (select set_config('outbox.removal', 'ack', true)) is not null
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)
