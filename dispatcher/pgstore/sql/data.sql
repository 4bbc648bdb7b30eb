-- name: odd_times
-- Names live rows whose times cannot be right, at both ends of the range of each topic.
-- $1 namespace; $2 topics; $3 most rows to look at from each end; $4 how many to name.
with odd as (
    select live.topic, event.id, event.next_attempt_at, case
        when next_attempt_at > '9999-12-31' then 'never due'
        when next_attempt_at < 'epoch' then 'due since before 1970'
        when created_at > now() + interval '1 minute' then 'created in the future, and due then'
        when created_at < 'epoch' then 'created before 1970'
        when status = 'processing' and (updated_at > now() + interval '1 minute' or locked_until > '9999-12-31') then 'leased in the future'
    end as what
    from unnest($2::text[]) as live (topic)
    cross join lateral (
        (
            select id, next_attempt_at, created_at, updated_at, locked_until, status from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic
            order by next_attempt_at, id
            limit $3::integer
        )
        union
        (
            select id, next_attempt_at, created_at, updated_at, locked_until, status from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic
            order by next_attempt_at desc, id desc
            limit $3::integer
        )
    ) as event
)
select topic, id, what, next_attempt_at::text, count(*) over ()
from odd
where what is not null
order by topic, id
limit $4::integer

-- name: set_right
-- Has rows due now that a clock which was ahead created, and that their producers did not delay: they are due at their
-- creation, or before. A row that another transaction has locked is for the next look.
-- $1 namespace; $2 topics; $3 most rows of each to look at from each end of what is due later.
with ahead as materialized (
    select event.id
    from unnest($2::text[]) as live (topic)
    cross join lateral (
        (
            select id, next_attempt_at, created_at from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic and next_attempt_at > now() + interval '1 minute'
            order by next_attempt_at, id
            limit $3::integer
        )
        union
        (
            select id, next_attempt_at, created_at from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic and next_attempt_at > now() + interval '1 minute'
            order by next_attempt_at desc, id desc
            limit $3::integer
        )
    ) as event
    where event.created_at > now() + interval '1 minute' and event.next_attempt_at <= event.created_at
),
locked as materialized (
    select id from outbox.outbox_events where id = any (array(select id from ahead)) for update skip locked
)
update outbox.outbox_events set next_attempt_at = now() where id = any (array(select id from locked))

-- name: oldest_transaction
-- Lists what keeps vacuum from removing rows of this database that are gone: whatever may still look
-- at them. since is null where the server does not show it; then mark stays the same for as long as
-- the same thing is held.
--
-- Every login may see all of them. When the transactions of other roles began is for members of
-- pg_read_all_stats. Not listed: vacuum itself, autovacuum, short transactions of this dispatcher's own
-- processes, and the catalog_xmin of slots, which holds back the catalogs only.
select 'Session' as kind, concat('pid ', pid, ' (' || nullif(application_name, '') || ')') as name,
       xact_start as since, coalesce(backend_xid, backend_xmin)::text as mark, now()
from pg_stat_activity
where datname = current_database()
  and usesysid is not null -- a login's, not a worker of the server
  and coalesce(backend_xid, backend_xmin) is not null
  and backend_type is distinct from 'walsender'
  and pid <> pg_backend_pid()
  -- A dispatcher's statements end within 10 s. A longer transaction is one whose process is frozen.
  and (application_name is distinct from nullif(current_setting('application_name'), '') or xact_start < now() - interval '10 seconds')
  and pid not in (select pid from pg_stat_progress_vacuum)
union all
select 'PreparedTransaction', gid, prepared, '', now()
from pg_prepared_xacts
where database = current_database()
union all
select 'ReplicationSlot', slot_name, null, xmin::text, now()
from pg_replication_slots
where xmin is not null
union all
select 'Standby', application_name, null, backend_xmin::text, now()
from pg_stat_replication
where backend_xmin is not null

-- name: orphans
-- Finds orphans, in all namespaces: due rows of topics that no worker serves, and rows that are leased to a worker that
-- is gone and that no other worker took over. Both have been so for a minute at least: a worker that is replaced, or a
-- lease that has just ended, does not make orphans.
-- Times that a clock which was ahead has left count for neither (CONTRACT C-3).
-- $1 most topics to look at; $2 most rows to look at in all, though a hundred of each topic.
--
-- Topics are found by one look into an index each: the next one after the last. Workers in other languages are not
-- in outbox_workers, so a topic of which a worker holds a row is served too.
with recursive step (namespace, topic) as (
    (
        select namespace, topic from outbox.outbox_events
        where live
        order by namespace, topic limit 1
    )
    union all
    select next.namespace, next.topic
    from step
    cross join lateral (
        select namespace, topic from outbox.outbox_events
        where live and (namespace, topic) > (step.namespace, step.topic)
        order by namespace, topic limit 1
    ) as next
),
found as materialized (
    select namespace, topic from step limit $1::integer
),
most as materialized (
    select greatest(100, $2::bigint / greatest(count(*), 1)) as records, count(*) as topics from found
),
serving as materialized (
    select namespace, topics from outbox.outbox_workers where seen_at between now() - interval '1 minute' and now() + interval '1 minute'
),
gone as materialized (
    select coalesce(array_agg(worker), '{}') as workers from outbox.outbox_workers where seen_at not between now() - interval '1 minute' and now() + interval '1 minute'
)
select found.namespace, found.topic, case when served.known or front.held then 0 else front.pending end as unserved, front.abandoned,
       front.looked > most.records as cut, most.topics = $1::integer as more
from found
cross join most
cross join gone
cross join lateral (
    select exists (
        select from serving
        where serving.namespace = found.namespace and (serving.topics = '{}' or found.topic = any (serving.topics))
    ) as known
) as served
cross join lateral (
    select count(*) as looked, count(*) filter (where status = 'pending') as pending,
           count(*) filter (where status = 'processing' and (locked_until < now() - interval '1 minute' or updated_at > now() + interval '1 minute' or locked_by = any (gone.workers))) as abandoned,
           coalesce(bool_or(locked_until > now() - interval '1 minute' and updated_at <= now() + interval '1 minute' and locked_by <> all (gone.workers)), false) as held
    from (
        select status, locked_until, updated_at, locked_by from outbox.outbox_events
        where live and namespace = found.namespace and topic = found.topic and next_attempt_at <= now() - interval '1 minute'
        order by next_attempt_at, id
        limit most.records + 1
    ) as row
) as front
where front.abandoned > 0 or front.pending > 0 and not (served.known or front.held)

-- name: outcomes
-- Counts how the deliveries of a dispatcher ended of late, as its running workers report, and how many events of its
-- topics became dead. An event counts as delivered when a worker marked it so, never because its row is gone.
-- $1 namespace; $2 dispatcher; $3 its topics, none for all; $4 cap of the dead letters to count, those of other topics too.
select report.delivered_5m, report.failed_5m, report.delivered_1h, report.failed_1h, dead.in_5m, dead.in_1h, dead.looked, now()
from (
    select coalesce(sum(delivered_5m), 0)::bigint as delivered_5m, coalesce(sum(failed_5m), 0)::bigint as failed_5m,
           coalesce(sum(delivered_1h), 0)::bigint as delivered_1h, coalesce(sum(failed_1h), 0)::bigint as failed_1h
    from outbox.outbox_workers
    where namespace = $1::text and dispatcher = $2::text and seen_at > now() - interval '1 minute'
) as report
cross join (
    select count(*) filter (where ours and dead_at > now() - interval '5 minutes') as in_5m,
           count(*) filter (where ours) as in_1h, count(*) as looked
    from (
        select dead_at, coalesce(cardinality($3::text[]), 0) = 0 or topic = any ($3::text[]) as ours
        from outbox.outbox_dead_letters
        where namespace = $1::text and dead_at > now() - interval '1 hour'
          and coalesce(reason <> '', false) -- the index's condition
        order by dead_at desc
        limit $4::integer + 1
    ) as newest
) as dead

-- name: past
-- The newest rows of any status, by their ids, which rise with time. Nothing is locked.
-- $1 namespace; $2 topics, null for all; $3 the earliest created_at, null for any; $4 and $5 ids to look at, from
-- below $4 down to $5; $6 how many rows to look at.
select id, namespace = $1::text and coalesce(topic = any ($2::text[]), true) and coalesce(created_at >= $3::timestamptz, true) as wanted,
       size_bytes
from outbox.outbox_events
where id < $4::uuid and id >= $5::uuid
order by id desc
limit $6::integer

-- name: past_rows
-- Rows as they stand, newest first. Nothing is locked. The columns are those of a claim, and then the status.
-- $1 ids.
select dead_reason, id, topic, attempts, lease, next_attempt_at, null::boolean as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, headers, payload, aggregate_sequence, fault_since, suspicion, expires_at, status
from outbox.outbox_events
where id = any ($1::uuid[])
order by id desc

-- name: adoptions
-- What is wrong with adopted tables of the namespace, or whose rows have each their own. It reads a few rows, but for a count
-- that is due.
-- $1 namespace.
select adoption, namespace, state, count from outbox.outbox_adoption_rows() where namespace in ($1, '')
