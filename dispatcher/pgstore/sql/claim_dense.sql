-- Leases rows that are due in order per key where nearly each is the first live one of its key, and marks
-- those found with no attempt left dead (CONTRACT C-20 to C-22, C-50). It is claim.sql with a look at what
-- comes before each row; claim_keyed.sql says why the order holds, and is for all that this one passes by.
-- $1..$9 those of claim.sql; $10 whether a dead row blocks its key; $11 keys to leave out;
-- $12 is $10 of claim.sql; $13..$15 the frontier, $20..$22 of claim_keyed.sql; $16 is $11 of claim.sql.

-- A row that waits for another one is locked in vain. What was changed between the snapshot and the lock
-- comes with its new ctid, which no later part of the statement finds.
with frontier as materialized (
    select $13::bigint[] as keys, $14::bigint[] as floors
    where $15::text = concat(extract(epoch from pg_postmaster_start_time()), ' ', pg_last_wal_replay_lsn())
),
looked as materialized (
    select share.n as range, event.*, case when exhausted then 0 else size_bytes end as bytes,
           (
               select before.seq from outbox.outbox_events as before
               where before.live and before.key_hash = event.key_hash and before.seq < event.seq and before.seq >= coalesce((
                   select frontier.floors[place]
                   from frontier cross join width_bucket(event.key_hash, frontier.keys) as place
                   where frontier.keys[place] = event.key_hash
                     and not exists (select from outbox.outbox_dead_letters as dead where dead.resolution is not null and dead.key_hash = event.key_hash)
               ), 0)
               order by before.seq desc limit 1 -- from the row backwards: the front has the entries of rows that are gone
           ) is null and (
               select dead.seq from outbox.outbox_dead_letters as dead
               where $10::boolean and dead.resolution is null and dead.key_hash = event.key_hash and dead.seq < event.seq
               limit 1
           ) is null as head
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[])
        with ordinality as share (topic, rows, floor_at, floor_id, n)
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash,
               size_bytes > $16::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($12::boolean or (size_bytes > $16::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6) else suspicion >= 5 end) is not true)
          and (key_hash is null or key_hash <> all ($11::bigint[]))
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as event
),
-- How far each range was read, and how many rows that was; at is null for its end. Its rows are in order.
reached as materialized (
    select range, coalesce(looked, 0) as looked, case when looked = rows then at end as at, id
    from unnest($3::integer[]) with ordinality as share (rows, range)
    left join (
        select range, count(*) as looked, max(next_attempt_at) as at, (array_agg(id))[count(*)] as id from looked group by range
    ) as counted using (range)
),
-- For the next statement of the transaction.
report as materialized (
    select set_config('outbox.report', json_build_object(
        'reached', (select json_agg(reached) from reached),
        'passed', (select json_agg(json_build_object('range', range, 'key_hash', key_hash)) from looked where not head)
    )::text, true)
),
-- All aggregates over them, in one pass.
given as materialized (
    select array_agg(row) as rows, array_agg(row) filter (where exhausted) as exhausted, sum(bytes) > $7::bigint as cut
    from looked where head
),
-- A claim may be lost in a crash of the database, a dead letter may not: with one, the commit waits for
-- the disk as the session would.
durable as materialized (
    select set_config('synchronous_commit', reset_val, true)
    from pg_settings
    where name = 'synchronous_commit' and (select exhausted from given) is not null
),
dead_letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, event_type, aggregate_type,
        aggregate_id, tenant_id, reason, class, code, place, attempts, worker, error, failures)
    select e.id, e.namespace, e.topic, e.seq, e.key_hash, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, reason,
           case reason when 'poison_message' then 'decode' when 'processing_timeout' then 'lease' else coalesce(e.failures #>> '{-1,class}', '') end,
           case reason when 'poison_message' then 'size' when 'processing_timeout' then '' else coalesce(e.failures #>> '{-1,code}', '') end,
           case reason when 'max_retries_exceeded' then coalesce(e.failures #>> '{-1,place}', '') else '' end,
           e.attempts, e.locked_by, case reason when 'poison_message' then format('payload and headers have %s bytes, more than maxInFlightBytes, which is %s; they were not read. Raise maxInFlightBytes, and the memory limit with it, and replay the event, or discard it', e.size_bytes, $16::bigint) else e.last_error end,
           coalesce(e.failures, '[]')
    from outbox.outbox_events as e cross join durable cross join lateral (
        select case when e.size_bytes > $16::bigint then 'poison_message' when e.status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end as reason
    ) as why
    where e.ctid = any ((select exhausted from given)::tid[])
)
update outbox.outbox_events
set status = case when ctid = any ((select exhausted from given)::tid[]) then 'dead' else 'processing' end,
    dead_reason = case when ctid = any ((select exhausted from given)::tid[]) then
        case when size_bytes > $16::bigint then 'poison_message' when status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    end,
    attempts = case when ctid = any ((select exhausted from given)::tid[]) or status = 'processing' then attempts else attempts + 1 end,
    suspicion = case when status = 'processing' then coalesce(suspicion, 1) end,
    lease = case when ctid = any ((select exhausted from given)::tid[]) then lease else (select nextval('outbox.outbox_leases')) end,
    locked_by = case when ctid = any ((select exhausted from given)::tid[]) then null else $8::uuid end,
    locked_until = case when ctid = any ((select exhausted from given)::tid[]) then null else now() + $9::interval end,
    updated_at = now()
where (select true from report) and ctid = any (case
    when not (select cut from given) then (select rows from given)
    -- As in claim.sql: in the order of looked, and the first row is taken whatever its size.
    else array(
        select row
        from (select row, exhausted, bytes, sum(bytes) over (rows unbounded preceding) as total from looked where head) as summed
        where exhausted or total <= $7::bigint or total = bytes
    )
    end)
-- A row that became dead has its last failure for a payload.
returning dead_reason, id, topic, attempts, lease, next_attempt_at, case when (select cut from given) then true end as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, case when dead_reason is null and pg_column_size(headers) > 8 then headers end as headers,
    case when dead_reason is null then payload else failures -> -1 end as payload,
    aggregate_sequence, fault_since, suspicion, key_hash
