-- oldest-reader: 1
--
-- enqueue_batch, the function by which producers add many events at once.

-- enqueue_id is the id of event n of a batch, of version 7: the time in milliseconds, a count within it, so that ids are
-- in the events' order, and 62 bits made of the number and one random one.
create function enqueue_id(p_ms bigint, p_seed bigint, p_n bigint) returns uuid
language sql
immutable
as $$
    select encode(int8send((p_ms + (p_n - 1 >> 12)) << 16 | 28672 | (p_n - 1 & 4095))
        || int8send(hashint8extended(p_n, p_seed) & 4611686018427387903 | -9223372036854775808), 'hex')::uuid
$$;

-- enqueue_rows makes the rows of a batch. It is inlined into the statements that insert them, so it must be stable. What is not
-- plainly right goes to enqueue_check, which names it.
create function enqueue_rows(
    p_namespaces text[], p_topics text[], p_payloads jsonb[], p_event_types text[], p_aggregate_types text[], p_aggregate_ids text[],
    p_partition_keys text[], p_tenant_ids uuid[], p_dedupe_keys text[], p_headers jsonb[], p_delays interval[], p_lock_keys boolean[],
    p_options jsonb, p_sequences bigint[], p_ids uuid[], p_seqs bigint[]
) returns table (
    n bigint, id uuid, seq bigint, key_hash bigint, size_bytes integer, aggregate_sequence bigint, max_attempts smallint, tenant_id uuid, namespace text, topic text,
    event_type text, aggregate_type text, aggregate_id text, partition_key text, dedupe_key text, retry jsonb, headers jsonb,
    payload jsonb, next_attempt_at timestamptz
)
language sql
stable
as $$
    select u.n, u.id, u.seq, outbox_key_hash(u.namespace, u.topic, u.partition_key, u.aggregate_id),
        octet_length(u.payload::text) + coalesce(octet_length(jsonb_strip_nulls(u.headers)::text) - 2, 0), u.sequence,
        case when p_options <> '{}' then (case jsonb_typeof(p_options) when 'array' then p_options -> (u.n - 1)::integer else p_options end ->> 'maxAttempts')::smallint end,
        u.tenant_id, u.namespace, u.topic, nullif(u.event_type, ''), nullif(u.aggregate_type, ''), nullif(u.aggregate_id, ''),
        nullif(u.partition_key, ''), nullif(u.dedupe_key, ''),
        case when p_options <> '{}' then case jsonb_typeof(p_options) when 'array' then p_options -> (u.n - 1)::integer else p_options end -> 'retry' end,
        coalesce(jsonb_strip_nulls(u.headers), '{}'), u.payload, now() + coalesce(u.delay, '0')
    from unnest(p_namespaces, p_topics, p_payloads, p_event_types, p_aggregate_types, p_aggregate_ids, p_partition_keys,
        p_tenant_ids, p_dedupe_keys, p_headers, p_delays, p_lock_keys, p_sequences, p_ids, p_seqs) with ordinality as u (namespace, topic, payload,
        event_type, aggregate_type, aggregate_id, partition_key, tenant_id, dedupe_key, headers, delay, lock, sequence, id, seq, n)
    where case when u.namespace <> '' and u.topic <> '' and u.payload is not null and p_options = '{}' and u.lock is not true
            and octet_length(u.namespace) <= 255 and octet_length(u.topic) <= 255
            and coalesce(greatest(octet_length(u.event_type), octet_length(u.aggregate_type), octet_length(u.aggregate_id),
                octet_length(u.partition_key), octet_length(u.dedupe_key)), 0) <= 1024
            and coalesce(u.headers = '{}' or octet_length(u.headers::text) <= 65536 and jsonb_typeof(u.headers) = 'object'
                and not u.headers ? '' and not u.headers @? 'strict $.* ? (@.type() != "string")', true)
            and coalesce(u.delay >= '0', true)
            and coalesce(starts_with(u.dedupe_key, u.tenant_id || '/') or u.dedupe_key = '', true)
        then true
        else enqueue_check(format('event %s: ', u.n), u.namespace, u.topic, u.payload is null, u.event_type, u.aggregate_type, u.aggregate_id,
            u.partition_key, u.tenant_id, u.dedupe_key, u.headers, u.delay, u.lock, case jsonb_typeof(p_options) when 'array'
            then coalesce(nullif(p_options -> (u.n - 1)::integer, 'null'), '{}') else p_options end) end
$$;

-- enqueue_batch adds events in their order, and returns a row for each in the order of the arrays, as enqueue does.
-- Element n of each array is of event n. An array that is null or empty means the default for all;
-- any other has as many elements as p_payloads, and a null in it means the default. p_options is an object
-- for all, or an array of one for each. An error names the event by its number, from 1, and then none is added.
--
-- Events with a lock lock their slots in ascending order, and those with a dedupe key are inserted in that of the keys, so that
-- two batches never wait for each other in a circle; the events keep their order.
create function enqueue_batch(
    p_namespaces      text[],
    p_topics          text[],
    p_payloads        jsonb[],
    p_event_types     text[]     default null,
    p_aggregate_types text[]     default null,
    p_aggregate_ids   text[]     default null,
    p_partition_keys  text[]     default null,
    p_tenant_ids      uuid[]     default null,
    p_dedupe_keys     text[]     default null,
    p_headers         jsonb[]    default null,
    p_delays          interval[] default null,
    p_ids             uuid[]     default null,
    p_max_bytes       integer    default 1048576,
    p_lock_keys       boolean[]  default null,
    p_options         jsonb      default '{}'
) returns table (id uuid, inserted boolean)
language plpgsql
security definer
set search_path from current
as $$
#variable_conflict use_column
declare
    v_events  integer := coalesce(cardinality(p_payloads), 0);
    v_options boolean := coalesce(p_options <> '{}', false);
    v_each    boolean := coalesce(jsonb_typeof(p_options) = 'array', false);
    v_ms      bigint  := extract(epoch from clock_timestamp()) * 1000;
    v_seed    bigint  := hashtextextended(gen_random_uuid()::text, 0);
    v_ids     uuid[];
    v_seqs    bigint[];
    v_new     jsonb; -- the seqs that were added, as names
    v_stands  uuid[];
    v_fresh   boolean[];
    v_other   bigint;
    v_numbers bigint[];
begin
    perform enqueue_check_data();
    if exists (select from unnest(array[cardinality(p_namespaces), cardinality(p_topics), cardinality(p_event_types),
            cardinality(p_aggregate_types), cardinality(p_aggregate_ids), cardinality(p_partition_keys),
            cardinality(p_tenant_ids), cardinality(p_dedupe_keys), cardinality(p_headers), cardinality(p_delays),
            cardinality(p_ids), cardinality(p_lock_keys), case when v_each then jsonb_array_length(p_options) end]) as n
            where n not in (0, v_events)) then
        raise exception 'outbox: the arrays have not one element for each of the % payloads', v_events
            using errcode = 'invalid_parameter_value', hint = 'Give arrays of one length, or null for the default.';
    end if;
    p_max_bytes := coalesce(p_max_bytes, 1048576);
    p_options := coalesce(p_options, '{}');

    if true = any (p_lock_keys) then
        perform pg_advisory_xact_lock(1869968482, slot)
        from (select distinct (hashtextextended(key, hashtextextended(topic, hashtextextended(namespace, 0))) & 1023)::integer as slot
            from (select namespace, topic, coalesce(nullif(partition, ''), nullif(aggregate, '')) as key
                from unnest(p_namespaces, p_topics, p_partition_keys, p_aggregate_ids, p_lock_keys)
                    as u (namespace, topic, partition, aggregate, lock)
                where lock) as k
            where key is not null
            order by slot) as s;
    end if;
    if v_options and p_options @? '$.aggregateSequence ? (@ == true)' then -- of the object, or of any in the array
        v_numbers := enqueue_number(p_namespaces, p_aggregate_types, p_aggregate_ids, p_options);
    end if;

    -- Without dedupe keys and ids of the caller nothing can conflict: an insert that need not look for
    -- conflicts is cheaper, and every event is new.
    if coalesce(p_ids, '{}') = '{}' and coalesce(p_dedupe_keys, '{}') = '{}' then
        return query
        insert into outbox_events (id, key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
        select enqueue_id(v_ms, v_seed, n), key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, retry, headers, payload, next_attempt_at
        from enqueue_rows(p_namespaces, p_topics, p_payloads, p_event_types, p_aggregate_types, p_aggregate_ids, p_partition_keys,
            p_tenant_ids, p_dedupe_keys, p_headers, p_delays, p_lock_keys, p_options, v_numbers, null, null)
        returning outbox_events.id, case when size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes then true
            else enqueue_check_sizes(p_payloads, p_max_bytes, 'event %s: ') end;
        return;
    end if;

    -- Inserts wait for transactions that insert the same keys. So they are in the order of the keys, and two batches never wait
    -- for each other in a circle. The events keep their order by seq, which is drawn first and says which were added.
    v_ids := array(select coalesce(p_ids[array_lower(p_ids, 1) + n - 1], enqueue_id(v_ms, v_seed, n)) from generate_series(1, v_events) as n);
    v_stands := array_fill(null::uuid, array[v_events]);
    v_fresh := array_fill(false, array[v_events]);
    loop
        v_seqs := array(select nextval('outbox_events_seq_seq') from generate_series(1, v_events));
        with added as (
            insert into outbox_events (id, seq, key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
            overriding system value
            select id, seq, key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, dedupe_key, retry, headers, payload, next_attempt_at
            from enqueue_rows(p_namespaces, p_topics, p_payloads, p_event_types, p_aggregate_types, p_aggregate_ids, p_partition_keys,
                p_tenant_ids, p_dedupe_keys, p_headers, p_delays, p_lock_keys, p_options, v_numbers, v_ids, v_seqs)
            where v_stands[n] is null
            order by namespace, topic, dedupe_key, id, n
            on conflict do nothing
            returning outbox_events.seq, case when size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes then true
                else enqueue_check_sizes(p_payloads, p_max_bytes, 'event %s: ') end as small
        )
        select coalesce(jsonb_object_agg(added.seq, true) filter (where small), '{}') into v_new from added;

        -- Of those that were not added, a row with the key stands, or one with the id.
        select array_agg(coalesce(u.stands, case when u.is_new then u.candidate end, by_key.id, by_id.id) order by n),
            array_agg(u.fresh or u.is_new order by n),
            min(n) filter (where by_key.id is null and not by_id.same)
        into v_stands, v_fresh, v_other
        from (select *, stands is null and v_new ? drawn::text as is_new
            from unnest(v_ids, v_seqs, v_stands, v_fresh, p_namespaces, p_topics, p_dedupe_keys)
                with ordinality as e (candidate, drawn, stands, fresh, namespace, topic, dedupe_key, n)) as u
        left join lateral (select e.id from outbox_events as e where u.stands is null and not u.is_new
            and e.namespace = u.namespace and e.topic = u.topic and e.dedupe_key = u.dedupe_key limit 1) as by_key on true
        left join lateral (select e.id, e.namespace = u.namespace and e.topic = u.topic as same from outbox_events as e
            where u.stands is null and not u.is_new and e.id = u.candidate limit 1) as by_id on true;
        if v_other is not null then
            raise exception 'outbox: event %: the id % is that of an event of another namespace or topic', v_other, v_ids[v_other]
                using errcode = 'unique_violation', hint = 'Make a new id for each event, or leave out p_ids.';
        end if;
        exit when array_position(v_stands, null) is null; -- else retention has just removed a row that stood: insert again
    end loop;
    if v_numbers is not null and false = any (v_fresh) then
        perform enqueue_renumber(p_namespaces, p_aggregate_types, p_aggregate_ids, v_stands, v_fresh, v_numbers);
    end if;
    return query select u.stands, u.fresh from unnest(v_stands, v_fresh) with ordinality as u (stands, fresh, n) order by n;
end
$$;

revoke all on function enqueue_batch from public;
revoke all on function enqueue_rows from public;
revoke all on function enqueue_id from public;
