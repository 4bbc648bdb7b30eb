-- Records failed attempts: back to pending after a delay, or dead with a dead letter
-- (CONTRACT C-24, C-41).
-- $1 ids and $2 attempts of the leases, in the order of locking; $3 worker; $4 errors; $5 delays;
-- $6 reasons, '' to retry; $7 whose attempt is given back (C-32). The lease is the whole guard, as in ack.sql.
--
-- The ids are compared with BETWEEN, not with "=": then there is one way to join, each failure looks up
-- its row. With "=" a plan made while the table is small reads all of the index, and is kept when the
-- table has grown. It also makes the statement lock its rows in the order of the failures.
with nacked as (
    update outbox.outbox_events as e
    set status = case failure.reason when '' then 'pending' else 'dead' end,
        dead_reason = nullif(failure.reason, ''),
        next_attempt_at = case failure.reason when '' then now() + failure.delay else e.next_attempt_at end,
        attempts = e.attempts - failure.unspent::integer,
        last_error = failure.error, locked_by = null, locked_until = null, updated_at = now()
    from unnest($1::uuid[], $2::integer[], $4::text[], $5::interval[], $6::text[], $7::boolean[])
        as failure (id, attempt, error, delay, reason, unspent)
    where e.id between failure.id and failure.id and e.attempts = failure.attempt and e.locked_by = $3::uuid
    returning e.id, e.namespace, e.topic, e.seq, e.key_hash, failure.attempt as attempts, e.dead_reason, e.last_error
),
letters as (
    insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, details)
    select id, namespace, topic, seq, key_hash, dead_reason, attempts, jsonb_build_object('error', last_error, 'worker', $3::uuid)
    from nacked
    where dead_reason is not null
)
select id, attempt from unnest($1::uuid[], $2::integer[]) as failure (id, attempt)
where (select count(*) from nacked) < cardinality($1::uuid[]) and (id, attempt) not in (select id, attempts from nacked)
