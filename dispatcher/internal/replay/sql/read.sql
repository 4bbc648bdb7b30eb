-- Reads operations: the one of an id, or the newest of a namespace. Running means that it is open, and a process was there
-- in the last minute.
-- $1 id, null for all; $2 namespace, empty for all; $3 how many.
select id, namespace, action, rate, began_at, finished_at, coalesce(stopped_reason, ''), coalesce(last_error, ''),
    waiting, pending, failing, delivered, dead_again, discarded, reopened, claimed, gone, not_dead, stopped,
    reason, requested_by, login, now(), seen_at > now() - interval '1 minute'
from outbox.outbox_replays
where ($1::uuid is null or id = $1::uuid) and ($2::text = '' or namespace = $2::text)
order by began_at desc, id limit $3::integer
