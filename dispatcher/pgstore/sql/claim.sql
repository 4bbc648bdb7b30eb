-- Leases rows that are due, and marks those found with no attempt left dead (CONTRACT C-20 to C-22).
-- $1 namespace; $2..$5 topics, their limits and floors (time, id); $6 max attempts; $7 max bytes;
-- $8 worker; $9 lease; $10 whether rows with no attempt left are marked dead, or left alone; $11 most bytes of a row: a
-- larger one has no attempt left, and its payload is not read (CONTRACT C-35). A row's own max_attempts comes before the
-- dispatcher's.
--
-- A lease that ended without an outcome spends no attempt, since no worker knows what ended the process: its row is a suspect,
-- and has no attempt left when begin.sql counted four deliveries of it (CONTRACT C-21, C-22). The lease of a row that was
-- changed more than a minute from now was given by a clock that was ahead, and is over (CONTRACT C-3).
--
-- All rows of a claim get one lease number. It is drawn only when there is a row.

-- Each topic is one range of the live index, read in order. A leased row keeps its
-- next_attempt_at, so one whose lease expired is at the front of the same range. MATERIALIZED,
-- since a LIMIT with SKIP LOCKED that is evaluated twice locks more rows than it returns. It keeps where the
-- rows are, and two facts that are mostly false: to keep a list of the rows costs 3 % of a claim.
with taken as materialized (
    select array_agg(e.ctid) as rows, array_agg(e.ctid) filter (where e.exhausted) as spent, sum(e.size_bytes) > $7::bigint as cut
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) as share (topic, rows, floor_at, floor_id)
    cross join lateral (
        select ctid, size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($10::boolean or (size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6) else suspicion >= 5 end) is not true)
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as e
),
-- claim_fair.sql continues here.
-- A claim may be lost in a crash of the database, a dead letter may not: with one, the commit waits for
-- the disk as the session would.
durable as materialized (
    select set_config('synchronous_commit', reset_val, true)
    from pg_settings
    where name = 'synchronous_commit' and (select spent from taken) is not null
),
dead_letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, event_type, aggregate_type,
        aggregate_id, tenant_id, reason, class, code, place, attempts, worker, error, failures)
    select e.id, e.namespace, e.topic, e.seq, e.key_hash, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, reason,
           case reason when 'poison_message' then 'decode' when 'processing_timeout' then 'lease' else coalesce(e.failures #>> '{-1,class}', '') end,
           case reason when 'poison_message' then 'size' when 'processing_timeout' then '' else coalesce(e.failures #>> '{-1,code}', '') end,
           case reason when 'max_retries_exceeded' then coalesce(e.failures #>> '{-1,place}', '') else '' end,
           e.attempts, e.locked_by, case reason when 'poison_message' then format('payload and headers have %s bytes, more than maxInFlightBytes, which is %s; they were not read. Raise maxInFlightBytes, and the memory limit with it, and replay the event, or discard it', e.size_bytes, $11::bigint) else e.last_error end,
           coalesce(e.failures, '[]')
    from outbox.outbox_events as e cross join durable cross join lateral (
        select case when e.size_bytes > $11::bigint then 'poison_message' when e.status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end as reason
    ) as why
    where e.ctid = any ((select spent from taken)::tid[])
)
-- By ctid: the rows are locked, so it holds still, and the plan is the same with any statistics.
-- A row that another transaction changed in between is not matched, and is for the next claim.
-- The server keeps all rows before it sends the first; to keep them once more costs a third more.
update outbox.outbox_events
set status = case when ctid = any ((select spent from taken)::tid[]) then 'dead' else 'processing' end,
    dead_reason = case when ctid = any ((select spent from taken)::tid[]) then
        case when size_bytes > $11::bigint then 'poison_message' when status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    end,
    attempts = case when ctid = any ((select spent from taken)::tid[]) or status = 'processing' then attempts else attempts + 1 end,
    suspicion = case when status = 'processing' then coalesce(suspicion, 1) end,
    lease = case when ctid = any ((select spent from taken)::tid[]) then lease else (select nextval('outbox.outbox_leases')) end,
    locked_by = case when ctid = any ((select spent from taken)::tid[]) then null else $8::uuid end,
    locked_until = case when ctid = any ((select spent from taken)::tid[]) then null else now() + $9::interval end,
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
                select ctid, ctid = any ((select spent from taken)::tid[]) as exhausted, case when ctid = any ((select spent from taken)::tid[]) then 0 else size_bytes end as bytes
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
    aggregate_sequence, fault_since, suspicion
