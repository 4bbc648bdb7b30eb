-- Leases rows that are due, and buries those found with no attempt left (CONTRACT C-20 to C-22).
-- $1 namespace; $2..$5 topics, their limits and floors (time, id); $6 max attempts; $7 max bytes;
-- $8 worker; $9 lease.

-- Each topic is one range of the live index, read in order. A leased row keeps its
-- next_attempt_at, so one whose lease expired is at the front of the same range. MATERIALIZED,
-- since a LIMIT with SKIP LOCKED that is evaluated twice locks more rows than it returns.
with found as materialized (
    select e.*
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) as share (topic, rows, floor_at, floor_id)
    cross join lateral (
        select ctid, id, locked_by, payload_bytes, attempts >= $6::integer as exhausted
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or locked_until < now())
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as e
),
-- The sum runs in the order of found. It has no ORDER BY, which would sort for nothing: in
-- another order it would still bound the bytes.
claimable as materialized (
    select ctid, total_bytes <= $7::bigint or total_bytes = payload_bytes as fits
    from (
        select ctid, payload_bytes, sum(payload_bytes) over (rows unbounded preceding) as total_bytes
        from found
        where not exhausted
    ) as summed
),
-- By ctid: the rows are locked, so it holds still, and the plan is the same with any statistics.
-- A row that another transaction changed in between is not matched, and is for the next claim.
claimed as (
    update outbox.outbox_events
    set status = 'processing', attempts = attempts + 1, locked_by = $8::uuid,
        locked_until = now() + $9::interval, updated_at = now()
    where ctid = any (array(select ctid from claimable where fits))
    returning *
),
buried as (
    update outbox.outbox_events
    set status = 'dead', locked_by = null, locked_until = null, updated_at = now(),
        dead_reason = case status when 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    where ctid = any (array(select ctid from found where exhausted))
    returning *
),
-- A claim may be lost in a crash of the database, a death may not: with one, the commit waits for
-- the disk as the session would.
durable as materialized (
    select set_config('synchronous_commit', reset_val, true)
    from pg_settings
    where name = 'synchronous_commit' and exists (select from found where exhausted)
),
letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, details)
    select buried.id, buried.namespace, buried.topic, buried.dead_reason, buried.attempts,
           jsonb_strip_nulls(jsonb_build_object('error', buried.last_error, 'worker', found.locked_by))
    from buried join found using (id) cross join durable
)
select null as dead_reason, id, topic, attempts, next_attempt_at, seq, tenant_id, coalesce(dedupe_key, ''),
       coalesce(partition_key, ''), coalesce(event_type, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''),
       headers, payload, created_at, updated_at, exists (select from claimable where not fits) as cut
from claimed
union all
select dead_reason, id, topic, attempts, next_attempt_at, seq, null, '', '', '', '', '', null, null, created_at, updated_at, false
from buried
