-- name: take
-- Takes notifications that are due: for a time no other process takes them. Those of events dead for too long are given up.
-- $1 namespace; $2 topics, none for all; $3 how many; $4 for how long; $5 the age at which a dead letter is given up.
with due as materialized (
    select id
    from outbox.outbox_dead_letters
    where namespace = $1::text
      and notify_at <= now()
      and (coalesce(cardinality($2::text[]), 0) = 0 or topic = any ($2::text[]))
    order by notify_at
    limit $3::integer
    for update skip locked
)
update outbox.outbox_dead_letters
set notify_at = case when dead_at < now() - $5::interval then null else now() + $4::interval end,
    notify_attempts = coalesce(notify_attempts, 0) + case when dead_at < now() - $5::interval then 0 else 1 end
where id = any (array(select id from due))
returning notify_at is null as given_up, now(), notify_attempts, id, event_id, fingerprint, topic, coalesce(seq, 0),
    coalesce(event_type, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), tenant_id, reason, class, code, place,
    coalesce(error, ''), attempts, dead_at

-- name: sent
-- Marks notifications that the address has accepted.
-- $1 ids of the dead letters.
update outbox.outbox_dead_letters
set notify_at = null, notified_at = now()
where id = any ($1::bigint[])

-- name: again
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

-- name: waiting
-- Counts the dead letters whose notification is still to be sent, with the time and the age of the first.
-- $1 namespace; $2 topics, none for all; $3 how many are counted.
select count(*), min(dead_at), coalesce(extract(epoch from now() - min(dead_at)), 0)::float8
from (
    select dead_at
    from outbox.outbox_dead_letters
    where namespace = $1::text and notify_at is not null
      and (coalesce(cardinality($2::text[]), 0) = 0 or topic = any ($2::text[]))
    limit $3::integer
) as waiting
