-- Locks a replay, so that its steps come one after the other whoever takes them.
-- $1 id.
select namespace, action, canary, abort_at, ordering = 'key'
from outbox.outbox_replays
where id = $1::uuid
for update
