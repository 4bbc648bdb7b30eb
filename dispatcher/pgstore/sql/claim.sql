-- name: claim
-- Leases rows that are due, and marks those found with no attempt left dead (CONTRACT C-20 to C-22). claim_parts.sql has the
-- arguments, and what the claims have in common.

-- Each topic is one range of the live index, read in order. A leased row keeps its
-- next_attempt_at, so one whose lease expired is at the front of the same range. MATERIALIZED,
-- since a LIMIT with SKIP LOCKED that is evaluated twice locks more rows than it returns. It keeps where the
-- rows are, and two facts that are mostly false: to keep a list of the rows costs 3 % of a claim.
with given as materialized (
    select array_agg(e.ctid) as rows, array_agg(e.ctid) filter (where e.exhausted) as spent, sum(e.size_bytes) > $7::bigint as cut
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) as share (topic, rows, floor_at, floor_id)
    cross join lateral (
        select ctid, {exhausted} as exhausted, size_bytes
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and {claimable}
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as e
),
{fitting}
{lease}
