-- An event's row.
-- $1 its id; $2 namespace; $3 topics, null for all; $4 whether with its content; $5 most bytes of that.
select e.id::text, e.topic, e.seq, coalesce(e.aggregate_sequence, 0), coalesce(e.event_type, ''), coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''),
       coalesce(e.partition_key, ''), coalesce(e.dedupe_key, ''), coalesce(e.tenant_id::text, ''), e.size_bytes, e.created_at,
       e.updated_at, e.status, e.attempts, e.lease, case when e.status = 'pending' then e.next_attempt_at end,
       coalesce(e.locked_by::text, ''), e.locked_until, coalesce(e.dead_reason, ''), coalesce(e.last_error, ''), coalesce(e.failures, '[]'),
       case when $4::boolean and e.size_bytes <= $5::integer then e.headers end,
       case when $4::boolean and e.size_bytes <= $5::integer then e.payload end
from outbox.outbox_events as e
where e.id = $1::uuid and e.namespace = $2::text and ($3::text[] is null or e.topic = any ($3::text[]))
