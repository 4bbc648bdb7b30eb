-- Leases a few rows that are due, for a worker that was woken: claim.sql without what takes time though it is
-- seldom needed. It does not divide the rows among topics: it takes the first rows that it finds. It leaves alone rows with
-- no attempt left, which are to be marked dead, and large ones, whose bytes are to be counted: those are for the
-- next ordinary claim.
-- $1 namespace; $2 topics; $3 floor (time); $4 most rows; $5 max attempts; $6 most bytes of a row; $7 worker;
-- $8 lease.
update outbox.outbox_events
set status = 'processing', attempts = attempts + 1, lease = (select nextval('outbox.outbox_leases')),
    locked_by = $7::uuid, locked_until = now() + $8::interval, updated_at = now()
where ctid = any (array(
    select ctid
    from outbox.outbox_events
    where live
      and namespace = $1::text
      and topic = any ($2::text[])
      and next_attempt_at between $3::timestamptz and now()
      and (status = 'pending' or locked_until < now())
      and attempts < coalesce(max_attempts, $5::integer)
      and size_bytes <= $6::bigint
    limit $4::bigint
    for update skip locked
))
returning dead_reason, id, topic, attempts, lease, next_attempt_at, null::boolean as cut,
    seq, created_at, tenant_id, dedupe_key, partition_key, event_type, aggregate_type, aggregate_id,
    max_attempts, retry, case when pg_column_size(headers) > 8 then headers end as headers, payload,
    aggregate_sequence
