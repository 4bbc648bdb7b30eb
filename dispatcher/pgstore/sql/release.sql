-- Gives leased rows back with their attempt, due as before (CONTRACT C-30, C-32).
-- $1 ids of the leases, $2 their attempt; $3 worker.
-- The conditions are as in ack.sql.
with released as (
    update outbox.outbox_events
    set status = 'pending', attempts = attempts - 1, locked_by = null, locked_until = null, updated_at = now()
    where id = any ($1::uuid[]) and attempts = $2::integer and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as lease (id)
where (select count(*) from released) < cardinality($1::uuid[]) and id not in (select id from released)
