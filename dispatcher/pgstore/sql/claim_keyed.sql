-- name: claim_keyed
-- Leases rows that are due in order per key, and marks those found with no attempt left dead
-- (CONTRACT C-20 to C-22, C-50). claim_parts.sql has most of the arguments. $17 how many rows of each range to look at;
-- $18 rows of a key; $19..$21 keys to read in addition: index of their range, hash, rows of it; $22 which ranges are steps of
-- a pass.
--
-- Why no later row of a key is delivered before an earlier one: the whole statement reads one
-- snapshot. Of a key it takes the first live rows in it, each only with all before it (and what is over, which is not delivered), and only if the
-- row is locked here in the very version that the snapshot shows. So of two claims of a key at the
-- same time, one meets the other's lock, or a version that is not its snapshot's, and takes nothing.
-- Any claim that sees the first one's commit sees the rows live and leased, and stops at them. What a
-- worker holds of a key thus has no live row before it that is not its own, whatever other workers,
-- crashes and clocks do. Only a row that the snapshot could not show may come late: one that was
-- committed, or replayed, after rows behind it were delivered.

with {frontier}
-- Workers that claim from a topic at the same moment look at different rows: each takes the first place
-- that is free. It is only a hint, and spares them to look for rows that another one has locked. A step
-- of a pass leaves out no row: no other worker may be there to look at it.
turn as materialized (
    select share.n as range, case when share.step then 0 else coalesce((
        select place from generate_series(0, 3) as place
        where pg_try_advisory_xact_lock(hashtextextended(topic, hashtextextended($1::text, place + 1)))
        limit 1
    ), 4) end as n
    from unnest($2::text[], $22::boolean[]) with ordinality as share (topic, step, n)
),
-- Rows that are due, in the order of the live index. A bounded number is looked at: rows that wait for
-- others, however many, do not make a claim slow.
ranges as materialized (
    select share.n as range, event.*
    from unnest($2::text[], $4::timestamptz[], $5::uuid[], $17::integer[])
        with ordinality as share (topic, floor_at, floor_id, look, n)
    join turn on turn.range = share.n
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash, attempts, {over} as late, {exhausted} as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and {claimable}
        order by next_attempt_at, id
        limit share.look offset share.look * turn.n
    ) as event
),
-- Which of them are the first live ones of their keys. Where keys have very many rows, only one is worth
-- reading. What is over waits for no other row.
looked as materialized (
    select event.*,
           key_hash is null or late is true or seq in (select min(seq) from ranges group by key_hash) and {first} as head
    from ranges as event
),
-- They are taken in the order of looked: an ORDER BY would only add a sort. Those that wait for a row before them are
-- left alone: many locks would be in vain.
found as materialized (
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
),
-- Keys that this worker has passed by before are read directly.
recalled as materialized (
    select key.range, key.rows, event.*
    from (
        select event.*, {floor} as floor from unnest($19::bigint[], $20::bigint[], $21::integer[]) as event (range, key_hash, rows)
    ) as key
    cross join lateral (
        select first.*, event.ctid as locked
        from (
            select ctid as row, seq, key_hash, attempts, {exhausted} as exhausted, size_bytes,
                   {claimable} and {unblocked} as free
            from outbox.outbox_events as event
            where live and key_hash = key.key_hash and seq >= key.floor
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
           case when attempts > 1 then 1 else greatest(1, least($18::integer, rows / (select n from heads)[range])) end as rows
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
               ({exhausted}) is not true and {claimable}
                   and row_number() over (order by seq) < head.rows and {unblocked} as wanted
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
    from unnest($3::integer[], $4::timestamptz[], $5::uuid[], $17::integer[])
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
-- The report is for the next statement of the transaction.
given as materialized (
    select array_agg(row) as rows, array_agg(row) filter (where exhausted) as spent, sum(bytes) > $7::bigint as cut,
        set_config('outbox.report', json_build_object(
            'reached', (select json_agg(json_build_object('range', range, 'looked', looked, 'at', {micros}, 'id', id)) from reached),
            'followed', exists (select from line),
            'passed', (select json_agg(passed) from passed),
            'recalled', (select json_agg(json_build_object('range', range, 'key_hash', key_hash)) from recalled)
        )::text, true) as report
    from taken
),
-- Bytes are given by seq, so that what has no room is the end of its key. The first row is taken whatever its size.
fitting as (
    select row
    from (select row, exhausted, bytes, sum(bytes) over (order by range, seq rows unbounded preceding) as total from taken) as summed
    where exhausted or total <= $7::bigint or total = bytes and not $10::boolean
),
{lease}, key_hash
