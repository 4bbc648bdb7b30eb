-- Moves the end of leases to now + lease (CONTRACT C-31).
-- $1 ids and $2 attempts of the leases, sorted by id; $3 worker; $4 lease.
-- The conditions are as in ack.sql.
update outbox.outbox_events as e
set locked_until = now() + $4::interval, updated_at = now()
from unnest($1::uuid[], $2::integer[]) as lease (id, attempt)
where e.id between lease.id and lease.id and e.attempts = lease.attempt and e.locked_by = $3::uuid
returning e.id, lease.attempt
