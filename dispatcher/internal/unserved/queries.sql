-- name: names
-- The first 1,000 names with pending events that no worker serves. Topics are found by one look into an index each. Workers in
-- other languages are not in outbox_workers, so a topic of which a worker holds a row is served too.
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
        where w.namespace = step.namespace and (w.topics = '{}' or step.topic = any (w.topics)) and seen_at between now() - interval '1 minute' and now() + interval '1 minute')
    and not exists (
        select from outbox.outbox_events as e
        where live and e.namespace = step.namespace and e.topic = step.topic and status = 'processing' and locked_until > now() - interval '1 minute' and updated_at <= now() + interval '1 minute'
            and not exists (select from outbox.outbox_workers as w where w.worker = e.locked_by and seen_at not between now() - interval '1 minute' and now() + interval '1 minute'))
    and exists (
        select from outbox.outbox_events as e where live and e.namespace = step.namespace and e.topic = step.topic and status = 'pending')
order by namespace, topic
limit 1000

-- name: served
-- $1 namespace, $2 topic: who serves it, a dispatcher or another worker that holds a row, and its pending events.
select coalesce((
        select 'dispatcher ' || coalesce(nullif(dispatcher, ''), worker::text) from outbox.outbox_workers
        where namespace = $1 and (topics = '{}' or $2 = any (topics)) and seen_at between now() - interval '1 minute' and now() + interval '1 minute' limit 1), (
        select 'worker ' || locked_by from outbox.outbox_events as e
        where live and namespace = $1 and topic = $2 and status = 'processing' and locked_until > now() - interval '1 minute' and updated_at <= now() + interval '1 minute'
            and not exists (select from outbox.outbox_workers as w where w.worker = e.locked_by and seen_at not between now() - interval '1 minute' and now() + interval '1 minute') limit 1)),
    (select count(*) from outbox.outbox_events where live and namespace = $1 and topic = $2 and status = 'pending')

-- name: duplicates
-- $1, $2 the name, $3, $4 the new one: pending events whose dedupe key the new one has.
select count(*) from outbox.outbox_events as e
where live and namespace = $1 and topic = $2 and status = 'pending' and dedupe_key is not null
    and exists (select from outbox.outbox_events as o where o.namespace = $3 and o.topic = $4 and o.dedupe_key = e.dedupe_key)

-- name: move
-- $1, $2 the name, $3 the reason, $4 how many at most, $5, $6 the new name, $7 the seq after which to begin. An event keeps its
-- id and its lease, so that fencing tokens rise on. It gets a new seq, in their order: claims in order per key rely on it that
-- nothing becomes live behind them. In its namespace it keeps its number, since an aggregate has one count for all topics; in
-- another one it gets the next one there, as by enqueue. For the journal it is an event that goes and comes, as at an adoption:
-- it hears of both first.
with due as materialized (
    select id, seq from outbox.outbox_events as e
    where coalesce(live, false) and seq > $7 and namespace = $1 and topic = $2 and status = 'pending'
        and not exists (select from outbox.outbox_events as o where o.namespace = $5 and o.topic = $6 and o.dedupe_key = e.dedupe_key)
    order by seq limit $4 for update
),
noted as (
    insert into outbox.outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login, reason)
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), due.id, 'adopt', $1, $2, session_user, $3
    from due, outbox.outbox_journal_settings where enabled
),
gone as (
    delete from outbox.outbox_events using due where outbox_events.id = due.id returning outbox_events.*
),
counters as (
    insert into outbox.outbox_aggregate_sequences as s (namespace, aggregate_type, aggregate_id, last, added)
    select $5, coalesce(aggregate_type, ''), aggregate_id, count(*), count(*)
    from gone
    where namespace <> $5 and aggregate_sequence is not null and aggregate_id <> ''
        and octet_length($5) + octet_length(aggregate_id) + coalesce(octet_length(aggregate_type), 0) <= 2600
    group by 2, 3
    order by 2, 3
    on conflict (namespace, aggregate_type, aggregate_id) do update set last = greatest(s.last, excluded.last - excluded.added) + excluded.added
    returning *
),
numbered as (
    select gone.id, last + 1 - row_number() over (partition by counters.aggregate_type, counters.aggregate_id order by seq desc) as sequence
    from gone
    join counters on counters.aggregate_type = coalesce(gone.aggregate_type, '') and counters.aggregate_id = gone.aggregate_id
    where gone.aggregate_sequence is not null
),
moved as (
    insert into outbox.outbox_events (id, created_at, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type,
        aggregate_type, aggregate_id, partition_key, dedupe_key, retry, headers, payload, first_due_at, next_attempt_at, lease, attempts, failures, last_error)
    select id, created_at, case namespace when $5 then aggregate_sequence else sequence end, max_attempts, tenant_id, $5, $6, event_type,
        aggregate_type, aggregate_id, partition_key, dedupe_key, retry, headers, payload, first_due_at, next_attempt_at, lease, attempts, failures,
        left(format('moved from topic %s of namespace %s by %s: %s', $2::text, $1::text, session_user, $3::text), 1024)
    from gone left join numbered using (id)
    order by seq
    returning 1
)
select count(*), coalesce((select max(seq) from due), 0) from moved

-- name: discard
-- $1, $2 the name, $3 the reason, $4 how many at most: a dead letter each, which is resolved as discarded: the journal
-- hears of that here, since it is inserted so. No trigger writes the reason unserved, so it proves the owner's login.
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
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), due.id, 'resolve', $1, $2, session_user, 'unserved'
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
