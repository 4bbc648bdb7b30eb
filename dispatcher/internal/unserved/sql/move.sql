-- $1, $2 the name, $3 the reason, $4 how many at most, $5, $6 the new name. An event keeps its id, its place and its lease, so
-- that fencing tokens rise on. For the journal it is an event that goes and comes, as at an adoption: it hears of both first.
with due as materialized (
    select id from outbox.outbox_events as e
    where live and namespace = $1 and topic = $2 and status = 'pending'
        and not exists (select from outbox.outbox_events as o where o.namespace = $5 and o.topic = $6 and o.dedupe_key = e.dedupe_key)
    order by next_attempt_at, id limit $4 for update
),
noted as (
    insert into outbox.outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login, reason)
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), due.id, 'adopt', $1, $2, session_user, $3
    from due, outbox.outbox_journal_settings where enabled
),
gone as (
    delete from outbox.outbox_events using due where outbox_events.id = due.id returning outbox_events.*
),
moved as (
    insert into outbox.outbox_events (id, seq, created_at, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type,
        aggregate_type, aggregate_id, partition_key, dedupe_key, retry, headers, payload, next_attempt_at, lease, attempts, failures, last_error)
    overriding system value
    select id, seq, created_at, aggregate_sequence, max_attempts, tenant_id, $5, $6, event_type,
        aggregate_type, aggregate_id, partition_key, dedupe_key, retry, headers, payload, next_attempt_at, lease, attempts, failures,
        left(format('moved from topic %s of namespace %s by %s: %s', $2::text, $1::text, session_user, $3::text), 1024)
    from gone
    returning 1
)
select count(*) from moved
