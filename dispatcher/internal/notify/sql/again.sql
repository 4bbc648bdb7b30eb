-- Puts back notifications that were not sent. One that another process has taken or sent meanwhile stays as it is.
-- $1 ids of the dead letters; $2 their attempts; $3 how long they wait; $4 how many attempts are given back.
--
-- The conditions are written so that there is one way to join, each looks up its dead letter: with "=" the planner may
-- read all that is to be sent, or hash the attempts.
update outbox.outbox_dead_letters as dead_letter
set notify_at = now() + back.delay, notify_attempts = dead_letter.notify_attempts - back.returned
from unnest($1::bigint[], $2::integer[], $3::interval[], $4::integer[]) as back (id, attempts, delay, returned)
where dead_letter.id between back.id and back.id
  and dead_letter.notify_attempts between back.attempts and back.attempts
  and coalesce(dead_letter.notify_at is not null, false)
