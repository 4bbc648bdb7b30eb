-- Leases a few rows that are due, for a worker that was woken: claim.sql without what takes time though it is
-- seldom needed. It leaves alone rows with no attempt left, which are to be buried, and large ones, whose
-- bytes are to be counted. Both are for the next ordinary claim.
-- $1 namespace; $2..$5 topics, their limits and floors (time, id); $6 max attempts; $7 most bytes of a row;
-- $8 worker; $9 lease.
with found as materialized (
    select e.*
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) as share (topic, rows, floor_at, floor_id)
    cross join lateral (
        select ctid
        from outbox.outbox_events
        where live
          and namespace = $1::text
          and topic = share.topic
          and (next_attempt_at, id) > (share.floor_at, share.floor_id)
          and next_attempt_at <= now()
          and (status = 'pending' or locked_until < now())
          and attempts < $6::integer
          and payload_bytes <= $7::bigint
        order by next_attempt_at, id
        limit share.rows
        for update skip locked
    ) as e
)
update outbox.outbox_events
set status = 'processing', attempts = attempts + 1, locked_by = $8::uuid, locked_until = now() + $9::interval, updated_at = now()
where ctid = any (array(select ctid from found))
returning dead_reason, id, topic, attempts, next_attempt_at, null::boolean as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    nullif(headers, '{}') as headers, payload
