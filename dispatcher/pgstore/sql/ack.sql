-- Marks leased rows delivered (CONTRACT C-23).
-- $1 ids and $2 attempts of the leases, sorted by id; $3 worker.
--
-- The lease is the guard, and the whole guard: only a processing row has locked_by. A condition on
-- status or live besides would tempt the planner to start from the live index.
--
-- The ids are compared with BETWEEN, not with "=": then there is one way to join, each lease looks up
-- its row. With "=" a plan made while the table is small reads all of the index, and is kept when the
-- table has grown. It also makes every statement lock its rows in the order of the leases.
update outbox.outbox_events as e
set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
from unnest($1::uuid[], $2::integer[]) as lease (id, attempt)
where e.id between lease.id and lease.id and e.attempts = lease.attempt and e.locked_by = $3::uuid
returning e.id, lease.attempt
