-- Gives leased rows back with their attempt, due as before (CONTRACT C-30, C-32).
-- $1 ids and $2 attempts of the leases, sorted by id; $3 worker.
-- The conditions are as in ack.sql.
update outbox.outbox_events as e
set status = 'pending', attempts = e.attempts - 1, locked_by = null, locked_until = null, updated_at = now()
from unnest($1::uuid[], $2::integer[]) as lease (id, attempt)
where e.id between lease.id and lease.id and e.attempts = lease.attempt and e.locked_by = $3::uuid
returning e.id, lease.attempt
