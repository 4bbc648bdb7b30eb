-- Reads how far a replay is: from its set until it is finished, and then from its own row.
-- $1 id.
select replay.action, replay.namespace, replay.rate, replay.began_at, replay.finished_at, coalesce(replay.stopped_reason, ''),
    replay.matched, coalesce(counted.state, ''), coalesce(counted.skipped, ''), coalesce(counted.n, 0)
from outbox.outbox_replays as replay
left join lateral (
    select state, skipped, count(*) as n
    from outbox.outbox_replay_items
    where replay_id = replay.id and replay.finished_at is null
    group by state, skipped
    union all
    select state, null, n
    from (values ('delivered', replay.delivered), ('dead_again', replay.dead_again), ('discarded', replay.discarded)) as final (state, n)
    where replay.finished_at is not null
    union all
    select 'skipped', reason, n::bigint from jsonb_each_text(replay.skipped) as final (reason, n)
) as counted on true
where replay.id = $1::uuid
