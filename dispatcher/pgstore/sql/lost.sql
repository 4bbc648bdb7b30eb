-- Returns the leases of a nack that are lost: those whose row was not made dead under them, by an earlier try of the
-- nack whose response did not arrive.
-- $1 ids of the rows and $2 the numbers of their leases; $3 reasons, '' to retry.
select id, lease from unnest($1::uuid[], $2::bigint[], $3::text[]) as failure (id, lease, reason)
where not exists (
    select from outbox.outbox_events as e
    where e.id between failure.id and failure.id and e.lease = failure.lease and e.dead_reason = failure.reason
)
