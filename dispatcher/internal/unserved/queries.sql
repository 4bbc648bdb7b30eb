-- name: names
-- The first 1,000 names with pending events that no worker serves. Topics are found by one look into an index each.
with recursive step (namespace, topic) as (
    (select namespace, topic from outbox.outbox_events where live order by namespace, topic limit 1)
    union all
    select next.namespace, next.topic
    from step
    cross join lateral (
        select namespace, topic from outbox.outbox_events
        where live and (namespace, topic) > (step.namespace, step.topic)
        order by namespace, topic limit 1
    ) as next
)
select namespace, topic, (
        select count(*) from outbox.outbox_events as e
        where live and e.namespace = step.namespace and e.topic = step.topic and status = 'pending')
from step
where not exists (
        select from outbox.outbox_workers as w
        where w.namespace = step.namespace and (w.topics = '{}' or step.topic = any (w.topics)) and seen_at > now() - interval '1 minute')
    and exists (
        select from outbox.outbox_events as e where live and e.namespace = step.namespace and e.topic = step.topic and status = 'pending')
order by namespace, topic
limit 1000

-- name: served
-- $1 namespace, $2 topic: a dispatcher that serves it, and its pending events.
select (
        select coalesce(nullif(dispatcher, ''), worker::text) from outbox.outbox_workers
        where namespace = $1 and (topics = '{}' or $2 = any (topics)) and seen_at > now() - interval '1 minute' limit 1),
    (select count(*) from outbox.outbox_events where live and namespace = $1 and topic = $2 and status = 'pending')

-- name: duplicates
-- $1, $2 the name, $3, $4 the new one: pending events whose dedupe key the new one has.
select count(*) from outbox.outbox_events as e
where live and namespace = $1 and topic = $2 and status = 'pending' and dedupe_key is not null
    and exists (select from outbox.outbox_events as o where o.namespace = $3 and o.topic = $4 and o.dedupe_key = e.dedupe_key)

-- name: move
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

-- name: discard
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
