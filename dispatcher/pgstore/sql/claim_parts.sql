-- name: claim_parts
-- What the claims have in common: {NAME} in one of them, or in a part, stands for the part "-- NAME" of this file (store.go).
-- $1 namespace; $2..$5 topics, their limits and floors (time, id); $6 max attempts; $7 max bytes; $8 worker; $9 lease;
-- $10 whether the bytes hold for the first row too; $11 most bytes of a row: a larger one has no attempt
-- left, and its payload is not read (CONTRACT C-35). A row's own max_attempts comes before the dispatcher's; so does its expires_at: $12 is how
-- long an event without is worth sending since it was due first, null for ever (CONTRACT C-18).
-- In order per key: $13 whether a dead row blocks its key; $14..$16 the frontier: hashes of
-- keys, ascending, the seq below which no row of each is live, and the run of the server that this holds for
-- (keyed_frontier.go says why it does).
--
-- A lease that ended without an outcome spends no attempt, since no worker knows what ended the process: its row is a suspect,
-- and has no attempt left when begin (leases.sql) counted four deliveries of it (CONTRACT C-21, C-22). The lease of a row that was
-- changed more than a minute from now was given by a clock that was ahead, and is over (CONTRACT C-3).

-- over
coalesce(expires_at, coalesce(first_due_at, created_at) + $12::interval) <= now()

-- exhausted
-- What has no attempt left, or whose time is over.
{over} or size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6::integer) else suspicion >= 5 end

-- due
next_attempt_at <= now() and (status = 'pending' or locked_until < now() or updated_at > now() + interval '1 minute')

-- used
case when used_until > now() + $17::integer * $16::interval + interval '1 minute' then now() else used_until end

-- claimable
-- The setting has the ids of the rows to leave alone (claimSettings in store.go); it is read once.
{due}
    and id <> all ((select coalesce(string_to_array(current_setting('outbox.skip', true), ','), '{}')::uuid[])::uuid[])

-- look
-- Instead of the lease: what it would be of, which is locked. Each argument is named, since a statement has a type for each.
named as (select $8::uuid, $9::interval)
select id, next_attempt_at from outbox.outbox_events where ctid = any ((select rows from given)::tid[])

-- fitting
-- The sum runs in the order of the rows. It has no ORDER BY, which would sort for nothing: in another order it would still
-- bound the bytes.
fitting as (
    select row
    from (
        select e.*, sum(bytes) over (rows unbounded preceding) as total
        from unnest((select rows from given)) as found (at)
        cross join lateral (
            select ctid as row, ctid = any ((select spent from given)::tid[]) as exhausted, case when ctid = any ((select spent from given)::tid[]) then 0 else size_bytes end as bytes
            from outbox.outbox_events
            where ctid = found.at
        ) as e
    ) as summed
    where exhausted or total <= $7::bigint or total = bytes and not $10::boolean
),

-- lease
-- Leases the rows that are given, and marks those that are spent dead, or expired if their time is over. If they are cut, bytes have no room for all of them,
-- and only those that are fitting are leased. All rows of a claim get one lease number, which is drawn only when there is a row.
--
-- A claim may be lost in a crash of the database, a dead letter may not: with one, the commit waits for the disk as the
-- session would.
durable as materialized (
    select set_config('synchronous_commit', reset_val, true)
    from pg_settings
    where name = 'synchronous_commit' and (select spent from given) is not null
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
    where e.ctid = any ((select spent from given)::tid[]) and ({over}) is not true
)
-- By ctid: the rows are locked, so it holds still, and the plan is the same with any statistics.
-- A row that another transaction changed in between is not matched, and is for the next claim.
-- The server keeps all rows before it sends the first; to keep them once more costs a third more.
update outbox.outbox_events
set status = case when ctid = any ((select spent from given)::tid[]) then case when {over} then 'expired' else 'dead' end else 'processing' end,
    dead_reason = case when ctid = any ((select spent from given)::tid[]) and ({over}) is not true then
        case when size_bytes > $11::bigint then 'poison_message' when status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    end,
    attempts = case when ctid = any ((select spent from given)::tid[]) or status = 'processing' then attempts else attempts + 1 end,
    suspicion = case when status = 'processing' then coalesce(suspicion, 1) end,
    lease = case when ctid = any ((select spent from given)::tid[]) then lease else (select nextval('outbox.outbox_leases')) end,
    locked_by = case when ctid = any ((select spent from given)::tid[]) then null else $8::uuid end,
    locked_until = case when ctid = any ((select spent from given)::tid[]) then null else now() + $9::interval end,
    updated_at = now(),
    expires_at = case when {over} then coalesce(expires_at, coalesce(first_due_at, created_at) + $12::interval) else expires_at end
where ctid = any (case when not (select cut from given) then (select rows from given) else array(select row from fitting) end)
-- Nulls are for what most rows would repeat: each column costs. Headers of at most 8 bytes are none: to compare
-- them with '{}' costs more. A row that became dead has its last failure for a payload.
returning coalesce(dead_reason, case status when 'expired' then status end), id, topic, attempts, lease, next_attempt_at, case when (select cut from given) then true end as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, case when status = 'processing' and pg_column_size(headers) > 8 then headers end as headers,
    case when status = 'processing' then payload else failures -> -1 end as payload,
    aggregate_sequence, fault_since, suspicion, coalesce(expires_at, coalesce(first_due_at, created_at) + $12::interval) as expires_at

-- micros
-- The position that a range was read to, as microseconds since 2000: of some times, such as -infinity, JSON has a text that Go
-- does not read. What is due is before infinity.
case when isfinite(at) then (extract(epoch from at) * 1000000)::bigint - 946684800000000 when at is not null then -9223372036854775808 end

-- frontier
-- While something holds vacuum back, the index of keys has an entry of each row that was delivered meanwhile, so what
-- lies below a key's floor is not read. The row of a resolved dead letter may be live again: its key has no floor.
frontier as materialized (
    select $14::bigint[] as keys, $15::bigint[] as floors
    where $16::text = concat(extract(epoch from pg_postmaster_start_time()), ' ', pg_last_wal_replay_lsn())
),

-- first
-- No live row of its key comes before it. From the row backwards: the front has the entries of rows that are gone.
           (
               select before.seq from outbox.outbox_events as before
               where before.live and before.key_hash = event.key_hash and before.seq < event.seq and before.seq >= {floor}
               order by before.seq desc limit 1
           ) is null and {unblocked}

-- floor
coalesce((
                   select frontier.floors[place]
                   from frontier cross join width_bucket(event.key_hash, frontier.keys) as place
                   where frontier.keys[place] = event.key_hash
                     and not exists (select from outbox.outbox_dead_letters as dead where dead.resolution is not null and dead.key_hash = event.key_hash)
               ), 0)

-- unblocked
(
               select dead.seq from outbox.outbox_dead_letters as dead
               where $13::boolean and dead.resolution is null and dead.key_hash = event.key_hash and dead.seq < event.seq
               limit 1
           ) is null
