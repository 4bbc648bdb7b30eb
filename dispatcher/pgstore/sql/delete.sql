-- Removes delivered rows instead of marking them: retention 0 (CONTRACT C-23, C-60).
-- $1 ids of the leases, $2 their attempt; $3 worker.
-- The conditions are as in ack.sql.
with acked as (
    delete from outbox.outbox_events
    where id = any ($1::uuid[]) and attempts = $2::integer and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as lease (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)
