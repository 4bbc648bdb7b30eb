-- Tells how far an operation is: from its set until it is finished, and then from its own row.
-- $1 id.
select operation.action, operation.namespace, operation.rate, operation.began_at, operation.finished_at, coalesce(operation.stopped_reason, ''),
    operation.matched, coalesce(counted.state, ''), coalesce(counted.skipped, ''), coalesce(counted.n, 0)
from outbox.outbox_replays as operation
left join lateral (
    select state, skipped, count(*) as n
    from outbox.outbox_replay_items
    where replay_id = operation.id and operation.finished_at is null
    group by state, skipped
    union all
    select state, null, n
    from (values ('delivered', operation.delivered), ('dead_again', operation.dead_again), ('discarded', operation.discarded)) as final (state, n)
    where operation.finished_at is not null
    union all
    select 'skipped', reason, n::bigint from jsonb_each_text(operation.skipped) as final (reason, n)
) as counted on true
where operation.id = $1::uuid
