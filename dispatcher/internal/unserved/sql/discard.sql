-- $1, $2 the name, $3 the reason, $4 how many at most: a dead letter each, which is resolved as discarded: the journal
-- hears of that here, since it is inserted so.
with due as materialized (
    select id from outbox.outbox_events
    where live and namespace = $1 and topic = $2 and status = 'pending'
    order by next_attempt_at, id limit $4 for update
),
dead as (
    update outbox.outbox_events as e
    set status = 'dead', dead_reason = 'permanent_failure', last_error = 'no dispatcher serves its namespace and topic', updated_at = now()
    from due where e.id = due.id
    returning e.*
),
noted as (
    insert into outbox.outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login, reason)
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), due.id, 'resolve', $1, $2, session_user, 'discarded'
    from due, outbox.outbox_journal_settings where enabled
),
dead_letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, event_type, aggregate_type, aggregate_id, tenant_id, reason,
        attempts, error, failures, notify_at, resolution, resolved_at, resolved_by, resolution_reason)
    select id, namespace, topic, seq, key_hash, event_type, aggregate_type, aggregate_id, tenant_id, dead_reason,
        attempts, last_error, coalesce(failures, '[]'), null, 'discarded', now(), session_user, $3
    from dead
    returning 1
)
select count(*) from dead_letters
