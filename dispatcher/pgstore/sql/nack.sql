-- Records failed attempts: back to pending after a delay, or dead with a dead letter
-- (CONTRACT C-24, C-41).
-- $1 ids of the rows and $2 the numbers of their leases, in the order of locking; $3 worker; $4 errors; $5 delays;
-- $6 reasons, '' to retry; $7 what failed, as JSON; $8 responses of the destination, '' for none. The guard is that of ack.sql.
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
