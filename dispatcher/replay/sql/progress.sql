-- Tells how far an operation is.
-- $1 id.
select operation.action, operation.namespace, operation.rate, operation.began_at, operation.finished_at, coalesce(operation.stopped_reason, ''),
    coalesce(item.state, ''), coalesce(item.skipped, ''), count(item.state)
from outbox.outbox_replays as operation
left join outbox.outbox_replay_items as item on item.replay_id = operation.id
where operation.id = $1::uuid
group by operation.id, item.state, item.skipped
