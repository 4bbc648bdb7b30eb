-- name: ack
-- Marks leased rows delivered (CONTRACT C-23), and returns the ids that were not held: mostly none.
-- $1 ids of the rows, $2 the number of their lease; $3 worker.
--
-- The lease number and the worker are the whole guard: only a processing row has locked_by. The worker is
-- in it because a crash of the database may forget the last numbers and give them to another worker. A
-- condition on status or live as well would tempt the planner to start from the live index.
--
-- With "= any" there is one plan, whatever is known of the table: the ids are looked up in order.
with acked as (
    update outbox.outbox_events
    set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)

-- name: begin
-- Counts that the delivery of suspects begins, or takes back what was counted (CONTRACT C-21).
-- $1 ids of the rows, $2 the number of their lease; $3 worker; $4 whether it begins.
-- The conditions are as in ack. Where nothing is counted nothing is taken back: the journal would have a change of a row that
-- stays as it was.
with begun as (
    update outbox.outbox_events
    set suspicion = case when $4::boolean then suspicion + 1 else 1 end
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid and ($4::boolean or suspicion > 1)
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from begun) < cardinality($1::uuid[]) and id not in (select id from begun)

-- name: delete
-- Removes delivered rows instead of marking them: retention 0 (CONTRACT C-23, C-60).
-- $1 ids of the rows, $2 the number of their lease; $3 worker.
-- The conditions are as in ack. The journal hears that it is a dispatcher who removes them.
with acked as (
    delete from outbox.outbox_events
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
      and (select set_config('outbox.removal', 'ack', true)) is not null
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)

-- name: extend
-- Moves the end of leases to now + lease (CONTRACT C-31).
-- $1 ids of the rows, $2 the number of their lease; $3 worker; $4 lease.
-- The conditions are as in ack.
with extended as (
    update outbox.outbox_events
    set locked_until = now() + $4::interval, updated_at = now()
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from extended) < cardinality($1::uuid[]) and id not in (select id from extended)

-- name: lost
-- Returns the leases of a nack that are lost: those whose row was not made dead under them, by an earlier try of the
-- nack whose response did not arrive.
-- $1 ids of the rows and $2 the numbers of their leases; $3 reasons, '' to retry.
select id, lease from unnest($1::uuid[], $2::bigint[], $3::text[]) as failure (id, lease, reason)
where not exists (
    select from outbox.outbox_events as e
    where e.id between failure.id and failure.id and e.lease = failure.lease and e.dead_reason = failure.reason
)

-- name: nack
-- Records failed attempts: back to pending after a delay, or dead with a dead letter
-- (CONTRACT C-24, C-41).
-- $1 ids of the rows and $2 the numbers of their leases, in the order of locking; $3 worker; $4 errors; $5 delays;
-- $6 reasons, '' to retry; $7 what failed, as JSON; $8 responses of the destination, '' for none. The guard is that of ack.
--
-- The ids are compared with BETWEEN, not with "=": then there is one way to join, each failure looks up
-- its row. With "=" a plan made while the table is small reads all of the index, and is kept when the
-- table has grown. It also makes the statement lock its rows in the order of the failures.
with nacked as (
    update outbox.outbox_events as e
    set status = case failure.reason when '' then 'pending' else 'dead' end,
        dead_reason = nullif(failure.reason, ''),
        next_attempt_at = case failure.reason when '' then now() + failure.delay else e.next_attempt_at end,
        last_error = failure.error,
        failures = coalesce(jsonb_path_query_array(e.failures, '$[last - 3 to last]'), '[]')
            || (failure.cause::jsonb || jsonb_build_object('at', now(), 'attempt', e.attempts)),
        locked_by = null, locked_until = null, updated_at = now()
    from unnest($1::uuid[], $2::bigint[], $4::text[], $5::interval[], $6::text[], $7::text[], $8::text[])
        as failure (id, lease, error, delay, reason, cause, response)
    where e.id between failure.id and failure.id and e.lease = failure.lease and e.locked_by = $3::uuid
    returning e.id, e.lease, e.namespace, e.topic, e.seq, e.key_hash, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id,
        e.attempts, e.dead_reason, e.last_error, e.failures, failure.response
),
dead_letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, event_type, aggregate_type,
        aggregate_id, tenant_id, reason, class, code, place, attempts, worker, error, failures, response)
    select id, namespace, topic, seq, key_hash, event_type, aggregate_type, aggregate_id, tenant_id, dead_reason,
           coalesce(failures #>> '{-1,class}', ''), coalesce(failures #>> '{-1,code}', ''), coalesce(failures #>> '{-1,place}', ''),
           attempts, $3::uuid, last_error, failures, nullif(response, '')
    from nacked
    where dead_reason is not null
)
select id, lease from unnest($1::uuid[], $2::bigint[]) as failure (id, lease)
where (select count(*) from nacked) < cardinality($1::uuid[]) and (id, lease) not in (select id, lease from nacked)

-- name: release
-- Gives leased rows back: pending again, with the attempt that the claim took (CONTRACT C-30, C-32).
-- $1 ids of the rows and $2 the numbers of their leases, in the order of locking; $3 worker; $4 delays, 0
-- for a row that is due as before; $5 errors, '' to keep the last one; the first such return is kept in fault_since. The guard is that of ack, and
-- the join that of nack.
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
