-- What workers and producers of the M10 outbox contract call, over the outbox's own table. README.md is its page.
--
-- "dispatcher migrate up --m10" fills in what is in braces, drops functions with these names, whatever their
-- signatures, and runs this in the same transaction.

-- Who is behind a locked_by that an M10 worker has set: a hash of its name, which is a text. Dispatchers know
-- nothing of it.
create table if not exists m10_recovery.processors (
    worker       uuid        not null primary key,
    processor_id text        not null,
    seen_at      timestamptz not null default now()
);

comment on table m10_recovery.processors is 'The M10 workers of the last seven days, by what outbox_events.locked_by has for them.';

create table if not exists m10_recovery.distributed_locks (
    lock_name   text        not null primary key,
    holder_id   text        not null,
    acquired_at timestamptz not null default now(),
    expires_at  timestamptz not null
);

comment on table m10_recovery.distributed_locks is 'The locks by which M10 workers take turns. They guard no event: leases do.';

-- The table of the contract. Rows that are dead, withdrawn or expired are not in it: they are neither waiting nor processed.
--
-- claimed_at is five minutes before the lease ends, also of a dispatcher's lease: a row is free when claimed_at is
-- older than that. retry_count is the number of attempts that failed. process_after is null for an event that is due since it
-- was added.
create or replace view m10_recovery.outbox as
select e.seq as id, coalesce(e.aggregate_type, '') as aggregate_type, coalesce(e.aggregate_id, '') as aggregate_id,
    coalesce(e.event_type, '') as event_type, e.payload, e.created_at,
    case e.status when 'delivered' then e.updated_at end as processed_at,
    case e.status when 'pending' then e.attempts else greatest(e.attempts - 1, 0) end as retry_count,
    nullif(e.next_attempt_at, e.created_at) as process_after,
    e.locked_until - interval '5 minutes' as claimed_at,
    coalesce(p.processor_id, e.locked_by::text) as claimed_by
from {schema}.outbox_events as e
left join m10_recovery.processors as p on p.worker = e.locked_by
where e.namespace = '{namespace}' and e.topic = '{topic}' and e.status not in ('dead', 'withdrawn', 'expired');

-- process_after may be set, while the event is not processed, and processed events may be deleted. Whatever else an UPDATE sets is
-- refused. A rule makes one statement of a DELETE, however many rows there are.
create or replace function m10_recovery.set_process_after() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $m10$
begin
    if to_jsonb(new) - 'process_after' <> to_jsonb(old) - 'process_after' then
        raise exception 'm10: an UPDATE of m10_recovery.outbox sets process_after alone' using errcode = 'feature_not_supported',
            hint = 'complete_outbox_event says what became of an event. A claim ends by itself after five minutes.';
    end if;
    update outbox_events set next_attempt_at = coalesce(new.process_after, created_at), updated_at = now(),
        first_due_at = case attempts when 0 then new.process_after else first_due_at end
    where coalesce(live, false) and seq = old.id and namespace = '{namespace}' and topic = '{topic}';
    if not found then
        return null; -- it is processed: the row does not count as updated
    end if;
    return new;
end
$m10$;

create or replace trigger set_process_after instead of update on m10_recovery.outbox
    for each row execute function m10_recovery.set_process_after();

create or replace rule delete_processed as on delete to m10_recovery.outbox do instead
    delete from {schema}.outbox_events
    where status = 'delivered' and seq = old.id and namespace = '{namespace}' and topic = '{topic}'
      and (select set_config('outbox.removal', 'retention', true)) is not null; -- which the journal hears

-- claim_outbox_events leases events that are due, or whose lease has expired, for five minutes. The lease number is
-- from the sequence of the dispatchers' claims, so that fencing tokens rise for an event whoever takes it.
--
-- A claim counts as an attempt, which a failure leaves so; one of a row whose lease has expired counts none, because a crash is not
-- a failure there. M10 knows no limit of attempts: a claim lifts the row's, so that no dispatcher makes dead what a worker retries. A batch
-- has at most 1,000 events. What is claimed after its time expires (CONTRACT C-18): it is not returned, and for a second the next ones are tried.
create function m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer default 10)
returns table (id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)
language plpgsql
security definer
set search_path = {schema}, pg_temp
-- The live index alone is right, whatever the planner knows of the table.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = on
set jit = off
as $m10$
#variable_conflict use_column
declare
    v_worker  uuid := encode(substring(sha256(convert_to(p_processor_id, 'UTF8')) for 16), 'hex');
    v_status  text;
    v_claimed boolean := false;
    v_expired boolean;
begin
    if v_worker is null then
        raise exception 'm10: the processor id is missing' using errcode = 'invalid_parameter_value', hint = 'Give the name of the worker, another for each process.';
    end if;
    if not exists (select from m10_recovery.processors where worker = v_worker and seen_at > now() - interval '1 hour') then
        insert into m10_recovery.processors (worker, processor_id) values (v_worker, p_processor_id)
            on conflict (worker) do update set seen_at = now();
        delete from m10_recovery.processors where seen_at < now() - interval '7 days';
    end if;

    if not exists (select from outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin) then
        perform outbox_fence_raise(); -- tokens rise, whatever a crash of the server has lost
    end if;

    loop
        v_expired := false;
        for id, aggregate_type, aggregate_id, event_type, payload, retry_count, v_status in
        with claimed as (
            update outbox_events as e
            set status = case when expires_at <= now() then 'expired' else 'processing' end,
                attempts = case when expires_at <= now() then attempts else greatest(attempts + (status = 'pending')::integer, 1) end,
                max_attempts = 32767, lease = case when expires_at <= now() then lease else (select nextval('outbox_leases')) end,
                suspicion = case when status = 'processing' then suspicion end, -- the outcome of the last lease has cleared it (CONTRACT C-21)
                locked_by = case when expires_at <= now() then null else v_worker end,
                locked_until = case when expires_at <= now() then null else now() + interval '5 minutes' end, updated_at = now()
            where ctid = any (array( -- evaluated once: a LIMIT with SKIP LOCKED that is evaluated twice locks more
                select ctid
                from outbox_events as due
                where live
                  and namespace = '{namespace}'
                  and topic = '{topic}'
                  and next_attempt_at <= now()
                  and (status = 'pending' or locked_until < now() or updated_at > now() + interval '1 minute') -- CONTRACT C-3
                order by next_attempt_at, due.id
                limit least(greatest(coalesce(p_batch_size, 10), 0), 1000)
                for update skip locked))
            returning e.id as event, next_attempt_at, seq, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, attempts, status
        )
        select seq, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), coalesce(event_type, ''), payload, attempts - 1, status
        from claimed
        order by next_attempt_at, event
        loop
            if v_status = 'expired' then
                v_expired := true;
            else
                v_claimed := true;
                return next;
            end if;
        end loop;
        exit when v_claimed or not v_expired or clock_timestamp() > statement_timestamp() + interval '1 second';
    end loop;
end
$m10$;

-- complete_outbox_event records an outcome: processed for good, or due again after 2^min(retry_count, 10) seconds, 1 s
-- after the first failure. It changes only what the worker holds. For a lease that it has lost it warns and returns:
-- another worker has the event, and its outcome counts.
create function m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text default null)
returns void
language plpgsql
security definer
set search_path = {schema}, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $m10$
declare
    v_worker uuid := encode(substring(sha256(convert_to(p_processor_id, 'UTF8')) for 16), 'hex');
begin
    -- "coalesce(live, false)" is how a statement gets the index by seq. Only a leased row has a locked_by.
    if p_success then
        update outbox_events
        set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
        where coalesce(live, false) and seq = p_event_id and locked_by = v_worker;
    else
        update outbox_events
        set status = 'pending', next_attempt_at = now() + make_interval(secs => power(2, least(attempts - 1, 10))),
            last_error = left(p_error, 1024),
            failures = coalesce(jsonb_path_query_array(failures, '$[last - 3 to last]'), '[]') || jsonb_strip_nulls(jsonb_build_object(
                'at', now(), 'attempt', attempts, 'class', 'handler', 'error', left(p_error, 1024))),
            locked_by = null, locked_until = null, updated_at = now()
        where coalesce(live, false) and seq = p_event_id and locked_by = v_worker;
    end if;
    if not found then
        raise warning 'm10: event % is not claimed by %; nothing was changed', p_event_id, p_processor_id
            using hint = 'Its five minutes were over and another worker has it, or it is complete. Claim smaller batches.';
    end if;
end
$m10$;

-- publish_outbox adds an event in the caller's transaction, and returns its id. Whoever retries it, a dispatcher too,
-- waits as M10 says, and gives up never.
--
-- As an upsert it replaces the payload of an event of the same aggregate and type that no worker has claimed yet. Where one
-- was claimed, its consumer may know the old payload by its id: a new event is added. Publishers for one aggregate take
-- turns, each until it commits, as with p_lock_key of enqueue.
create function m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb)
returns bigint
language plpgsql
security definer
set search_path = {schema}, pg_temp
-- Without a sort the index of keys alone has the order of seq.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $m10$
declare
    v_key bigint;
    v_seq bigint;
begin
    perform enqueue_check_data();
    perform enqueue_check('', '{namespace}', '{topic}', p_payload is null, p_event_type, p_aggregate_type, p_aggregate_id,
        null, null, null, '{}', '0', {upsert}, '{}');
    if octet_length(p_payload::text) > 1048576 then
        perform enqueue_check_sizes(array[p_payload], 1048576, '');
    end if;
    p_aggregate_type := nullif(p_aggregate_type, '');
    p_aggregate_id := nullif(p_aggregate_id, '');
    p_event_type := nullif(p_event_type, '');

    if {upsert} then
        v_key := hashtextextended(p_aggregate_id, hashtextextended('{topic}', hashtextextended('{namespace}', 0))); -- key_hash
        perform pg_advisory_xact_lock(1869968482, (v_key & 1023)::integer);
        update outbox_events
        set payload = p_payload, size_bytes = octet_length(p_payload::text) + octet_length(headers::text) - 2, updated_at = now()
        where id = (
            select id
            from outbox_events
            where live
              and key_hash = v_key
              and namespace = '{namespace}'
              and topic = '{topic}'
              and aggregate_id = p_aggregate_id
              and aggregate_type is not distinct from p_aggregate_type
              and event_type is not distinct from p_event_type
              and status = 'pending'
              and lease = 0 and attempts = 0 -- else a consumer may have handled the old payload by this id
            order by seq desc
            limit 1
            for update)
        returning seq into v_seq;
        if found then
            return v_seq;
        end if;
    end if;

    insert into outbox_events (id, max_attempts, namespace, topic, event_type, aggregate_type, aggregate_id, retry, payload)
    values (encode(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint << 16 | 28672)
            || substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid, -- version 7, as in enqueue
        32767, '{namespace}', '{topic}', p_event_type, p_aggregate_type, p_aggregate_id, '{"strategy": "PowerOfTwo"}', p_payload)
    returning seq into v_seq;
    return v_seq;
end
$m10$;

-- The locks that deployed workers take before they claim, one holder for each name. A holder that has the lock gets
-- it again.
create function m10_recovery.acquire_lock(p_lock_name text, p_holder_id text, p_ttl_seconds integer default 600)
returns boolean
language sql
security definer
set search_path = pg_catalog, pg_temp
as $m10$
    with held as (
        insert into m10_recovery.distributed_locks as l (lock_name, holder_id, expires_at)
        values (p_lock_name, p_holder_id, now() + make_interval(secs => p_ttl_seconds))
        on conflict (lock_name) do update
        set holder_id = excluded.holder_id, acquired_at = now(), expires_at = excluded.expires_at
        where l.expires_at < now() or l.holder_id = excluded.holder_id
        returning true
    )
    select exists (select from held)
$m10$;

create function m10_recovery.extend_lock(p_lock_name text, p_holder_id text, p_ttl_seconds integer default 600)
returns boolean
language sql
security definer
set search_path = pg_catalog, pg_temp
as $m10$
    with held as (
        update m10_recovery.distributed_locks
        set expires_at = now() + make_interval(secs => p_ttl_seconds)
        where lock_name = p_lock_name and holder_id = p_holder_id
        returning true
    )
    select exists (select from held)
$m10$;

create function m10_recovery.release_lock(p_lock_name text, p_holder_id text)
returns boolean
language sql
security definer
set search_path = pg_catalog, pg_temp
as $m10$
    with held as (
        delete from m10_recovery.distributed_locks
        where lock_name = p_lock_name and holder_id = p_holder_id
        returning true
    )
    select exists (select from held)
$m10$;

revoke all on function m10_recovery.claim_outbox_events, m10_recovery.complete_outbox_event, m10_recovery.publish_outbox,
    m10_recovery.acquire_lock, m10_recovery.extend_lock, m10_recovery.release_lock, m10_recovery.set_process_after from public;
