-- Rows as they stand, newest first. Nothing is locked. The columns are those of claim.sql, and then the status.
-- $1 ids.
select dead_reason, id, topic, attempts, lease, next_attempt_at, null::boolean as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, headers, payload, aggregate_sequence, fault_since, suspicion, status
from outbox.outbox_events
where id = any ($1::uuid[])
order by id desc
