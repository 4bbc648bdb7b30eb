-- Ends a run.
-- $1 name; $2 time until the next one.
update outbox.outbox_sweeps
set ended_at = now(), seconds = extract(epoch from now() - began_at), began_at = null, position = 0, next_run = now() + $2::interval
where name = $1::text and began_at is not null
