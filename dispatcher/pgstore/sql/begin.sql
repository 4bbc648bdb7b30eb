-- Counts that the delivery of suspects begins (CONTRACT C-21).
-- $1 ids of the rows, $2 the number of their lease; $3 worker.
-- The conditions are as in ack.sql.
with begun as (
    update outbox.outbox_events
    set suspicion = suspicion + 1
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from begun) < cardinality($1::uuid[]) and id not in (select id from begun)
