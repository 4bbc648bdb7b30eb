-- Dead letters, the newest first.
-- $1 the id before which they begin; $2 most dead letters; $3 whether with all that is known of them; then the
-- filter's.
select l.id, l.event_id::text, l.fingerprint, l.topic, coalesce(l.seq, 0), coalesce(l.event_type, ''), coalesce(l.aggregate_type, ''),
       coalesce(l.aggregate_id, ''), coalesce(l.tenant_id::text, ''), l.reason, l.class, l.code, l.place, coalesce(l.error, ''),
       l.attempts, l.dead_at, l.resolution, coalesce(l.resolved_at, now()), coalesce(l.resolved_by, ''),
       coalesce(l.resolution_reason, ''), coalesce(l.replay_id::text, ''), coalesce(l.replay_state, ''),
       case when $3::boolean then coalesce(l.worker::text, '') else '' end,
       case when $3::boolean then l.failures else '[]' end,
       case when $3::boolean then coalesce(l.response, '') else '' end
from outbox.outbox_dead_letters as l
where l.id < $1::bigint and /* filter */ true
order by l.id desc
limit $2::integer
