-- Leases rows that are due, and marks those found with no attempt left dead (CONTRACT C-20 to C-22).
-- $1 namespace; $2..$5 topics, their limits and floors (time, id); $6 max attempts; $7 max bytes;
-- $8 worker; $9 lease; $10 whether rows with no attempt left are marked dead, or left alone. A row's own
-- max_attempts comes before the dispatcher's.
--
-- All rows of a claim get one lease number. It is drawn only when there is a row.

-- Each topic is one range of the live index, read in order. A leased row keeps its
-- next_attempt_at, so one whose lease expired is at the front of the same range. MATERIALIZED,
-- since a LIMIT with SKIP LOCKED that is evaluated twice locks more rows than it returns. It keeps where the
-- rows are, and two facts that are mostly false: to keep a list of the rows costs 3 % of a claim.
with taken as materialized (
    select array_agg(e.ctid) as rows, bool_or(e.exhausted) as spent, sum(e.size_bytes) > $7::bigint as cut
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) as share (topic, rows, floor_at, floor_id)
    cross join lateral (
        select ctid, attempts >= coalesce(max_attempts, $6::integer) as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or locked_until < now())
          and ($10::boolean or attempts < coalesce(max_attempts, $6))
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as e
),
-- A claim may be lost in a crash of the database, a dead letter may not: with one, the commit waits for
-- the disk as the session would.
durable as materialized (
    select set_config('synchronous_commit', reset_val, true)
    from pg_settings
    where name = 'synchronous_commit' and (select spent from taken)
),
dead_letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, event_type, aggregate_type,
        aggregate_id, tenant_id, reason, class, code, place, attempts, worker, error, failures)
    select e.id, e.namespace, e.topic, e.seq, e.key_hash, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id,
           case e.status when 'processing' then 'processing_timeout' else 'max_retries_exceeded' end,
           case e.status when 'processing' then 'lease' else coalesce(e.failures #>> '{-1,class}', '') end,
           case e.status when 'processing' then '' else coalesce(e.failures #>> '{-1,code}', '') end,
           case e.status when 'processing' then '' else coalesce(e.failures #>> '{-1,place}', '') end,
           e.attempts, e.locked_by, e.last_error, coalesce(e.failures, '[]')
    from outbox.outbox_events as e cross join durable
    where e.ctid = any (case when (select spent from taken) then (select rows from taken) end) and e.attempts >= coalesce(e.max_attempts, $6)
)
-- By ctid: the rows are locked, so it holds still, and the plan is the same with any statistics.
-- A row that another transaction changed in between is not matched, and is for the next claim.
-- The server keeps all rows before it sends the first; to keep them once more costs a third more.
update outbox.outbox_events
set status = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then 'dead' else 'processing' end,
    dead_reason = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then
        case status when 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    end,
    attempts = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then attempts else attempts + 1 end,
    lease = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then lease else (select nextval('outbox.outbox_leases')) end,
    locked_by = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then null else $8::uuid end,
    locked_until = case when (select spent from taken) and attempts >= coalesce(max_attempts, $6) then null else now() + $9::interval end,
    updated_at = now()
where ctid = any (case
    when not (select cut from taken) then (select rows from taken)
    -- The sum runs in the order of taken. It has no ORDER BY, which would sort for nothing: in
    -- another order it would still bound the bytes. The first row is taken whatever its size.
    else array(
        select ctid
        from (
            select e.*, sum(bytes) over (rows unbounded preceding) as total
            from unnest((select rows from taken)) as found (at)
            cross join lateral (
                select ctid, attempts >= coalesce(max_attempts, $6) as exhausted,
                       case when attempts < coalesce(max_attempts, $6) then size_bytes else 0 end as bytes
                from outbox.outbox_events
                where ctid = found.at
            ) as e
        ) as summed
        where exhausted or total <= $7::bigint or total = bytes
    )
    end)
-- Nulls are for what most rows would repeat: each column costs. Headers of at most 8 bytes are none: to compare
-- them with '{}' costs more.
-- A row that became dead has its last failure for a payload.
returning dead_reason, id, topic, attempts, lease, next_attempt_at, case when (select cut from taken) then true end as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, case when dead_reason is null and pg_column_size(headers) > 8 then headers end as headers,
    case when dead_reason is null then payload else failures -> -1 end as payload,
    aggregate_sequence, fault_since
