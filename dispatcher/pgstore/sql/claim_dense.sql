-- name: claim_dense
-- Leases rows that are due in order per key where nearly each is the first live one of its key, and marks
-- those found with no attempt left dead (CONTRACT C-20 to C-22, C-50). It is claim.sql with a look at what
-- comes before each row; claim_keyed.sql says why the order holds, and is for all that this one passes by.
-- claim_parts.sql has the arguments.

-- A row that waits for another one is locked in vain. What was changed between the snapshot and the lock
-- comes with its new ctid, which no later part of the statement finds.
with {frontier}
looked as materialized (
    select share.n as range, event.*, late is true or {first} as head
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[])
        with ordinality as share (topic, rows, floor_at, floor_id, n)
    cross join lateral (
        select ctid as row, next_attempt_at, id, seq, key_hash, {over} as late, {exhausted} as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and {claimable}
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
-- The report is for the next statement of the transaction.
given as materialized (
    select array_agg(row) as rows, array_agg(row) filter (where exhausted) as spent, sum(size_bytes) filter (where exhausted is not true) > $7::bigint as cut,
        set_config('outbox.report', json_build_object(
            'reached', (select json_agg(json_build_object('range', range, 'looked', looked, 'at', {micros}, 'id', id)) from reached),
            'passed', (select json_agg(json_build_object('range', range, 'key_hash', key_hash)) from looked where not head)
        )::text, true) as report
    from looked where head
),
{fitting}
{lease}, key_hash
