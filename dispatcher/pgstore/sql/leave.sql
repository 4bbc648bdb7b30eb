-- Removes the row of a worker that stops.
-- $1 worker.
delete from outbox.outbox_workers where worker = $1::uuid
