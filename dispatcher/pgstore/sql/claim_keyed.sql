-- Leases rows that are due in order per key, and marks those found with no attempt left dead
-- (CONTRACT C-20 to C-22, C-50). It returns what claim.sql does.
-- $1 namespace; $2..$6 ranges: topics, limits, floors (time, id), and how many rows to look at;
-- $7 max attempts; $8 max bytes; $9 worker; $10 lease; $11 rows of a key; $12 whether a dead row
-- blocks its key; $13..$15 keys to read in addition: index of their range, hash, rows of it; $16 which
-- ranges are steps of a pass; $17 whether many rows of the ranges are to be had: then all are locked as
-- they are read, and not looked up again; $18 keys that the ranges leave out; $19 is
-- $10 of claim.sql; $20..$22 the frontier: hashes of keys, ascending, the seq below which no row of each is live, and
-- the run of the server that this holds for (keyed_frontier.go says why it does); $23 is $11 of claim.sql.
--
-- Why no later row of a key is delivered before an earlier one: the whole statement reads one
-- snapshot. Of a key it takes the first live rows in it, each only with all before it, and only if the
-- row is locked here in the very version that the snapshot shows. So of two claims of a key at the
-- same time, one meets the other's lock, or a version that is not its snapshot's, and takes nothing.
-- Any claim that sees the first one's commit sees the rows live and leased, and stops at them. What a
-- worker holds of a key thus has no live row before it that is not its own, whatever other workers,
-- crashes and clocks do. Only a row that the snapshot could not show may come late: one that was
-- committed, or replayed, after rows behind it were delivered.

-- While something holds vacuum back, the index of keys has an entry of each row that was delivered meanwhile, so what
-- lies below a key's floor is not read. The row of a resolved dead letter may be live again: its key has no floor.
with frontier as materialized (
    select $20::bigint[] as keys, $21::bigint[] as floors
    where $22::text = concat(extract(epoch from pg_postmaster_start_time()), ' ', pg_last_wal_replay_lsn())
),
-- Workers that claim from a topic at the same moment look at different rows: each takes the first place
-- that is free. It is only a hint, and spares them to look for rows that another one has locked. A step
-- of a pass leaves out no row: no other worker may be there to look at it.
turn as materialized (
    select share.n as range, case when share.step then 0 else coalesce((
        select place from generate_series(0, 3) as place
        where pg_try_advisory_xact_lock(hashtextextended(topic, hashtextextended($1::text, place + 1)))
        limit 1
    ), 4) end as n
    from unnest($2::text[], $16::boolean[]) with ordinality as share (topic, step, n)
),
-- Rows that are due, in the order of the live index. A bounded number is looked at: rows that wait for
-- others, however many, do not make a claim slow. One of the two parts is read. The first takes what is
-- free by its locks, so it needs no turn.
ranges as materialized (
    select share.n as range, event.*
    from unnest($2::text[], $4::timestamptz[], $5::uuid[], $6::integer[])
        with ordinality as share (topic, floor_at, floor_id, look, n)
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash, attempts, size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($19::boolean or (size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7) else suspicion >= 5 end) is not true)
          and (key_hash is null or key_hash <> all ($18::bigint[]))
        order by next_attempt_at, id
        limit share.look
        for update skip locked
    ) as event
    where $17::boolean
    union all
    select share.n as range, event.*
    from unnest($2::text[], $4::timestamptz[], $5::uuid[], $6::integer[])
        with ordinality as share (topic, floor_at, floor_id, look, n)
    join turn on turn.range = share.n
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash, attempts, size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($19::boolean or (size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7) else suspicion >= 5 end) is not true)
          and (key_hash is null or key_hash <> all ($18::bigint[]))
        order by next_attempt_at, id
        limit share.look offset share.look * turn.n
    ) as event
    where not $17::boolean
),
-- Which of them are the first live ones of their keys. Where keys have very many rows, only one is worth
-- reading.
looked as materialized (
    select event.*,
           key_hash is null or seq in (select min(seq) from ranges group by key_hash) and (
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
               where $12::boolean and dead.resolution is null and dead.key_hash = event.key_hash and dead.seq < event.seq
               limit 1
           ) is null as head
    from ranges as event
),
-- They are taken in the order of looked: an ORDER BY would only add a sort. Where they are not locked yet,
-- those that wait for a row before them are left alone: many locks would be in vain.
found as materialized (
    select share.rows, event.*
    from unnest($3::integer[]) with ordinality as share (rows, n)
    cross join lateral (
        select looked.*, row as locked
        from looked
        where range = share.n and head
        limit share.rows
    ) as event
    where $17::boolean
    union all
    select share.rows, event.*
    from unnest($3::integer[]) with ordinality as share (rows, n)
    cross join lateral (
        select looked.*, event.ctid as locked
        from looked
        join outbox.outbox_events as event on event.ctid = looked.row
        where range = share.n and head
        limit share.rows
        for update of event skip locked
    ) as event
    where not $17::boolean
),
-- Keys that this worker has passed by before are read directly.
recalled as materialized (
    select key.range, key.rows, event.*
    from unnest($13::bigint[], $14::bigint[], $15::integer[]) as key (range, hash, rows)
    cross join lateral (
        select first.*, event.ctid as locked
        from (
            select ctid as row, seq, key_hash, attempts, size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7::integer) else suspicion >= 5 end as exhausted, size_bytes,
                   next_attempt_at <= now() and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute')) and ($19::boolean or (size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7) else suspicion >= 5 end) is not true) and (
                       select dead.seq from outbox.outbox_dead_letters as dead
                       where $12::boolean and dead.resolution is null and dead.key_hash = event.key_hash and dead.seq < event.seq
                       limit 1
                   ) is null as free
            from outbox.outbox_events as event
            where live and key_hash = key.hash and seq >= coalesce((
                   select frontier.floors[place]
                   from frontier cross join width_bucket(key.hash, frontier.keys) as place
                   where frontier.keys[place] = key.hash
                     and not exists (select from outbox.outbox_dead_letters as dead where dead.resolution is not null and dead.key_hash = key.hash)
               ), 0)
            order by seq limit 1
        ) as first
        join outbox.outbox_events as event on event.ctid = first.row
        where free
        for update of event skip locked
    ) as event
),
-- How many heads each range has.
heads as materialized (
    select array(
        select n from unnest($3::integer[]) with ordinality as share (rows, range)
        left join (select range, count(*) as n from found where row = locked group by range) as counted using (range)
        order by range
    ) as n
),
-- What was changed between the snapshot and the lock is for the next claim. (It may be returned with its
-- new ctid, which no later part of the statement finds: they all read the snapshot. Where rows are looked
-- up by ctid, servers before 14.20, 15.15, 16.11 and 17.7 show that only by row = locked.) A row that was tried
-- twice comes alone: should it fail again, those behind it would only be released.
head as materialized (
    select range, row, seq, key_hash, exhausted, size_bytes,
           case when attempts > 1 then 1 else greatest(1, least($11::integer, rows / (select n from heads)[range])) end as rows
    from found
    where row = locked
    union all
    select range, row, seq, key_hash, exhausted, size_bytes, case when attempts > 1 then 1 else rows end
    from recalled
    where row = locked and not exists (select from found where found.row = recalled.row)
),
-- The rows behind each head that is the snapshot's, the last of them only to show how the key continues.
following as materialized (
    select head.range, event.*
    from head
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash, size_bytes,
               (size_bytes > $23::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $7::integer) else suspicion >= 5 end) is not true and next_attempt_at <= now() and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
                   and row_number() over (order by seq) < head.rows and (
                       select dead.seq from outbox.outbox_dead_letters as dead
                       where $12::boolean and dead.resolution is null and dead.key_hash = event.key_hash and dead.seq < event.seq
                       limit 1
                   ) is null as wanted
        from outbox.outbox_events as event
        where live and key_hash = head.key_hash and seq > head.seq
        order by seq
        limit head.rows
    ) as event
    where head.rows > 1 and head.exhausted is not true
      and exists (select from outbox.outbox_events as first where first.ctid = head.row)
),
locked as materialized (
    select ctid as row
    from outbox.outbox_events
    where ctid = any (array(select row from following where wanted))
    for update skip locked
),
-- The first row of a key that is not to be had ends it. (Counted, not joined: the planner expects a few
-- rows here, and would compare each with each.)
line as materialized (
    select *, count(*) filter (where not had) over (partition by key_hash order by seq rows unbounded preceding) as missing
    from (select *, row in (select row from locked) as had from following) as behind
),
taken as materialized (
    select range, row, seq, exhausted, case when exhausted then 0 else size_bytes end as bytes
    from head
    union all
    select range, row, seq, false, size_bytes
    from line
    where missing = 0
),
-- How far each range was read, and how many rows that was: up to the last that was found where all that
-- are requested are, else to the last that was looked at. null for its end. Its rows are in order.
reached as materialized (
    select share.n as range,
           case when last.id is null then share.look else (
               select count(*) from ranges
               where range = share.n and (ranges.next_attempt_at, ranges.id) <= (last.next_attempt_at, last.id)
           ) end as looked,
           coalesce(last.next_attempt_at, stop.next_attempt_at, case when turn.n > 0 then share.floor_at end) as at,
           coalesce(last.id, stop.id, case when turn.n > 0 then share.floor_id end) as id
    from unnest($3::integer[], $4::timestamptz[], $5::uuid[], $6::integer[])
        with ordinality as share (rows, floor_at, floor_id, look, n)
    join turn on turn.range = share.n
    left join lateral (
        select next_attempt_at, id from found where range = share.n offset greatest(share.rows - 1, 0) limit 1
    ) as last on true
    left join lateral (
        select next_attempt_at, id from ranges where range = share.n offset greatest(share.look - 1, 0) limit 1
    ) as stop on true
),
-- What this claim goes past, for the worker to remember: keys whose next row no range will come to.
passed as materialized (
    select range, key_hash
    from reached cross join lateral (select key_hash, head from looked where looked.range = reached.range limit reached.looked) as event
    where not head
    union
    select range, key_hash
    from line
    join reached using (range)
    where not had and missing = 1 and (reached.at is null or (next_attempt_at, line.id) <= (reached.at, reached.id))
),
-- For the next statement of the transaction.
report as materialized (
    select set_config('outbox.report', json_build_object(
        'reached', (select json_agg(reached) from reached),
        'followed', exists (select from line),
        'passed', (select json_agg(passed) from passed),
        'recalled', (select json_agg(json_build_object('range', range, 'key_hash', key_hash)) from recalled)
    )::text, true)
),
-- All aggregates over them, in one pass.
given as materialized (
    select array_agg(row) as rows, array_agg(row) filter (where exhausted) as exhausted, sum(bytes) > $8::bigint as cut from taken
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
           e.attempts, e.locked_by, case reason when 'poison_message' then format('payload and headers have %s bytes, more than maxInFlightBytes, which is %s; they were not read. Raise maxInFlightBytes, and the memory limit with it, and replay the event, or discard it', e.size_bytes, $23::bigint) else e.last_error end,
           coalesce(e.failures, '[]')
    from outbox.outbox_events as e cross join durable cross join lateral (
        select case when e.size_bytes > $23::bigint then 'poison_message' when e.status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end as reason
    ) as why
    where e.ctid = any ((select exhausted from given)::tid[])
)
update outbox.outbox_events
set status = case when ctid = any ((select exhausted from given)::tid[]) then 'dead' else 'processing' end,
    dead_reason = case when ctid = any ((select exhausted from given)::tid[]) then
        case when size_bytes > $23::bigint then 'poison_message' when status = 'processing' then 'processing_timeout' else 'max_retries_exceeded' end
    end,
    attempts = case when ctid = any ((select exhausted from given)::tid[]) or status = 'processing' then attempts else attempts + 1 end,
    suspicion = case when status = 'processing' then coalesce(suspicion, 1) end,
    lease = case when ctid = any ((select exhausted from given)::tid[]) then lease else (select nextval('outbox.outbox_leases')) end,
    locked_by = case when ctid = any ((select exhausted from given)::tid[]) then null else $9::uuid end,
    locked_until = case when ctid = any ((select exhausted from given)::tid[]) then null else now() + $10::interval end,
    updated_at = now()
where (select true from report) and ctid = any (case
    when not (select cut from given) then (select rows from given)
    -- Bytes are given by seq, so that what has no room is the end of its key. The first row is taken
    -- whatever its size.
    else array(
        select row
        from (select row, exhausted, bytes, sum(bytes) over (order by range, seq rows unbounded preceding) as total from taken) as summed
        where exhausted or total <= $8::bigint or total = bytes
    )
    end)
-- A row that became dead has its last failure for a payload.
returning dead_reason, id, topic, attempts, lease, next_attempt_at, case when (select cut from given) then true end as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, case when dead_reason is null and pg_column_size(headers) > 8 then headers end as headers,
    case when dead_reason is null then payload else failures -> -1 end as payload,
    aggregate_sequence, fault_since, suspicion, key_hash
