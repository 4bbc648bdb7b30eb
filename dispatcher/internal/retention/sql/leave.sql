-- Gives the lease back.
-- $1 worker.
update outbox.outbox_sweeps set holder = null, held_until = null
where name = 'retention' and holder = $1::uuid
