-- Moves the end of leases to now + lease (CONTRACT C-31).
-- $1 ids of the rows, $2 the number of their lease; $3 worker; $4 lease.
-- The conditions are as in ack.sql.
with extended as (
    update outbox.outbox_events
    set locked_until = now() + $4::interval, updated_at = now()
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from extended) < cardinality($1::uuid[]) and id not in (select id from extended)
