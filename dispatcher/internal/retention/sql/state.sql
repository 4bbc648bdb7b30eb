-- Reads a sweep. No row means that it never ran.
-- $1 its name.
select pages, position, coalesce(began_at is not null, false), ended_at, next_run, seconds, delivered, dead, expired, dead_letters,
       next_run <= now() or began_at is not null as due
from outbox.outbox_sweeps
where name = $1::text
