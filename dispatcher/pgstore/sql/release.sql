-- Gives leased rows back: pending again, with the attempt that the claim took (CONTRACT C-30, C-32).
-- $1 ids of the rows and $2 the numbers of their leases, in the order of locking; $3 worker; $4 delays, 0
-- for a row that is due as before; $5 errors, '' to keep the last one; the first such return is kept in fault_since. The guard is that of ack.sql, and
-- the join that of nack.sql.
with released as (
    update outbox.outbox_events as e
    set status = 'pending',
        next_attempt_at = case when given.delay > interval '0' then now() + given.delay else e.next_attempt_at end,
        attempts = e.attempts - 1,
        last_error = coalesce(nullif(given.error, ''), e.last_error),
        fault_since = case when given.error <> '' and e.fault_since is null then now() else e.fault_since end,
        locked_by = null, locked_until = null, updated_at = now()
    from unnest($1::uuid[], $2::bigint[], $4::interval[], $5::text[]) as given (id, lease, delay, error)
    where e.id between given.id and given.id and e.lease = given.lease and e.locked_by = $3::uuid
    returning e.id, e.lease
)
select id, lease from unnest($1::uuid[], $2::bigint[]) as given (id, lease)
where (select count(*) from released) < cardinality($1::uuid[]) and (id, lease) not in (select id, lease from released)
