-- oldest-reader: 1
--
-- enqueue, the function that producers call, and what it shares with enqueue_batch.

-- outbox_key_hash is the hash of an event's ordering key, or null for none.
create function outbox_key_hash(p_namespace text, p_topic text, p_partition_key text, p_aggregate_id text) returns bigint
language sql
immutable
as $$
    select hashtextextended(coalesce(nullif(p_partition_key, ''), nullif(p_aggregate_id, '')),
        hashtextextended(p_topic, hashtextextended(p_namespace, 0)))
$$;

-- outbox_values fills key_hash and size_bytes in a row that comes without them, and first_due_at in one that is new and delayed.
create function outbox_values() returns trigger
language plpgsql
security definer
set search_path from current
as $$
begin
    if new.size_bytes is null then
        new.key_hash   := outbox_key_hash(new.namespace, new.topic, new.partition_key, new.aggregate_id);
        new.size_bytes := octet_length(new.payload::text) + octet_length(new.headers::text) - 2;
    end if;
    if new.next_attempt_at > new.created_at and new.attempts = 0 and new.lease = 0 then
        new.first_due_at := coalesce(new.first_due_at, new.next_attempt_at);
    end if;
    return new;
end
$$;

create trigger outbox_values before insert on outbox_events
    for each row when (new.size_bytes is null or new.next_attempt_at > new.created_at) execute function outbox_values();

-- enqueue_retry_problem says what is wrong with a row's backoff, or null. The rules are those of a
-- dispatcher's backoff.
create function enqueue_retry_problem(p_retry jsonb) returns text
language plpgsql
as $$
declare
    v_strategy text := coalesce(p_retry ->> 'strategy', 'Exponential');
    v_name     text;
    v_millis   numeric[];
begin
    if jsonb_typeof(p_retry) <> 'object' then
        return 'is not an object; give one such as {"strategy": "Linear", "base": "10s", "max": "10m"}';
    end if;
    select key into v_name from jsonb_object_keys(p_retry) as key
        where key <> all ('{strategy,base,max,multiplier,jitterPercent}') order by key limit 1;
    if found then
        return format('has the unknown name %s; use strategy, base, max, multiplier and jitterPercent', to_json(left(v_name, 100)));
    elsif v_strategy not in ('Exponential', 'Multiplier', 'PowerOfTwo', 'Linear') or jsonb_typeof(p_retry -> 'strategy') <> 'string' then
        return 'has an unknown strategy; choose Exponential, Multiplier, PowerOfTwo or Linear';
    elsif v_strategy <> 'Multiplier' and p_retry ?| '{multiplier,jitterPercent}' then
        return 'has multiplier or jitterPercent without strategy Multiplier; set it, or remove them';
    elsif v_strategy = 'PowerOfTwo' and p_retry ?| '{base,max}' then
        return 'has base or max with strategy PowerOfTwo, whose delays are fixed; remove them';
    end if;

    foreach v_name in array '{base,max}'::text[] loop
        if p_retry ? v_name and (jsonb_typeof(p_retry -> v_name) <> 'string' or length(p_retry ->> v_name) > 32
                or p_retry ->> v_name !~ '^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') then
            return v_name || ' is not a duration; write it such as "500ms", "30s" or "1m30s"';
        end if;
        v_millis := v_millis || (select sum(part[1]::numeric * case part[2] when 'ms' then 1 when 's' then 1000 when 'm' then 60000 else 3600000 end)
            from regexp_matches(coalesce(p_retry ->> v_name, case v_name || v_strategy when 'baseLinear' then '60s'
                else case v_name when 'base' then '1s' else '1h' end end), '([0-9]+(?:[.][0-9]+)?)(ms|s|m|h)', 'g') as part);
    end loop;
    if least(v_millis[1], v_millis[2]) < 1 or greatest(v_millis[1], v_millis[2]) > 86400000 then
        return 'has a base or max outside 1ms to 24h; choose one within';
    elsif v_millis[1] > v_millis[2] then
        return 'has a base above max (when not set base is 1s, for Linear 60s, and max 1h); lower base or raise max';
    elsif p_retry ? 'multiplier' and (jsonb_typeof(p_retry -> 'multiplier') <> 'string'
            or p_retry ->> 'multiplier' !~ '^([1-9]([.][0-9]+)?|10([.]0+)?)$' or length(p_retry ->> 'multiplier') > 8) then
        return 'has a multiplier that is not a decimal from "1" to "10" in quotes; write it such as "1.5"';
    elsif p_retry ? 'jitterPercent' and (jsonb_typeof(p_retry -> 'jitterPercent') <> 'number'
            or p_retry ->> 'jitterPercent' !~ '^([0-9]|[1-9][0-9]|100)$') then
        return 'has a jitterPercent that is not a whole number from 0 to 100; correct it';
    end if;
    return null;
end
$$;

-- enqueue_check raises what is wrong with an event, and names it by p_place, which is empty for a single one.
-- It returns true, so that it can stand in a condition. The functions below call it for what is not
-- plainly right.
create function enqueue_check(
    p_place text, p_namespace text, p_topic text, p_payload_missing boolean, p_event_type text, p_aggregate_type text,
    p_aggregate_id text, p_partition_key text, p_tenant_id uuid, p_dedupe_key text, p_headers jsonb, p_delay interval,
    p_lock_key boolean, p_options jsonb
) returns boolean
language plpgsql
as $$
declare
    v_name  text;
    v_what  text;
    v_hint  text;
begin
    -- 2,600 bytes are what an entry of an index holds in addition to the rest.
    if coalesce(p_namespace, '') = '' then
        v_what := 'the namespace is missing';
        v_hint := 'Give the namespace that a dispatcher serves.';
    elsif coalesce(p_topic, '') = '' then
        v_what := 'the topic is missing';
        v_hint := 'Give the topic of the event.';
    elsif length(p_namespace) > 255 or length(p_topic) > 255 then
        v_what := format('the namespace has %s and the topic %s characters', length(p_namespace), length(p_topic));
        v_hint := 'Use at most 255 characters for each.';
    elsif greatest(length(p_event_type), length(p_aggregate_type), length(p_aggregate_id), length(p_partition_key), length(p_dedupe_key)) > 1024 then
        v_what := 'the event type, the aggregate type, the aggregate id, the partition key or the dedupe key is too long';
        v_hint := 'Use at most 1024 characters for each, or a hash.';
    elsif octet_length(p_namespace) + octet_length(p_topic) + octet_length(p_dedupe_key) > 2600 then
        v_what := format('namespace, topic and dedupe key have %s bytes', octet_length(p_namespace) + octet_length(p_topic) + octet_length(p_dedupe_key));
        v_hint := 'Use at most 2600 bytes together, or a hash of the key.';
    elsif p_payload_missing then
        v_what := 'the payload is missing';
        v_hint := 'Give a JSON value; ''null''::jsonb is one.';
    elsif jsonb_typeof(p_headers) <> 'object' then
        v_what := 'the headers are not a JSON object';
        v_hint := 'Give an object of texts, numbers and booleans.';
    elsif p_headers @? 'strict $.* ? (@.type() == "object" || @.type() == "array")' then
        v_what := 'the headers have an object or an array as a value';
        v_hint := 'Give an object of texts, numbers and booleans.';
    elsif p_headers ? '' then
        v_what := 'the headers have an empty name';
        v_hint := 'Name the header, or remove it.';
    elsif octet_length(p_headers::text) > 65536 then
        v_what := format('the headers have %s bytes as text, more than 65536', octet_length(p_headers::text));
        v_hint := 'Put what is large into the payload.';
    elsif p_delay < '0' then
        v_what := 'the delay is negative';
        v_hint := 'Give 0 or more.';
    elsif p_tenant_id is not null and p_dedupe_key <> '' and not (
            strpos(p_dedupe_key, '/') > 0 and lower(split_part(p_dedupe_key, '/', 1))
                in (p_tenant_id::text, replace(p_tenant_id::text, '-', ''))) then
        v_what := 'the dedupe key does not start with the tenant id';
        v_hint := 'Start it with the UUID of the tenant and a slash.';
    elsif p_lock_key and coalesce(p_partition_key, '') = '' and coalesce(p_aggregate_id, '') = '' then
        v_what := 'there is no key to lock';
        v_hint := 'Give an aggregate id or a partition key, or leave out the lock.';
    elsif jsonb_typeof(p_options) <> 'object' then
        v_what := 'the options are not a JSON object';
        v_hint := 'Give an object with maxAttempts, retry or aggregateSequence, or leave it out.';
    elsif p_options <> '{}' then
        select key into v_name from jsonb_object_keys(p_options) as key
            where key not in ('maxAttempts', 'retry', 'aggregateSequence') order by key limit 1;
        if found then
            v_what := format('the option %s is unknown', to_json(left(v_name, 100)));
            v_hint := 'Use maxAttempts, retry and aggregateSequence, or migrate the schema to the version that knows it.';
        elsif p_options ? 'maxAttempts' and (jsonb_typeof(p_options -> 'maxAttempts') <> 'number'
                or p_options ->> 'maxAttempts' !~ '^([1-9][0-9]{0,2}|1000)$') then
            v_what := 'the option maxAttempts is not a whole number from 1 to 1000';
            v_hint := 'Correct it, or leave it out for the dispatcher''s.';
        elsif p_options ? 'aggregateSequence' and jsonb_typeof(p_options -> 'aggregateSequence') <> 'boolean' then
            v_what := 'the option aggregateSequence is neither true nor false';
            v_hint := 'Correct it, or leave it out for an event without a number.';
        elsif p_options -> 'aggregateSequence' = 'true' and coalesce(p_aggregate_id, '') = '' then
            v_what := 'there is no aggregate to number the event in';
            v_hint := 'Give an aggregate id, or leave out aggregateSequence.';
        elsif p_options -> 'aggregateSequence' = 'true'
                and octet_length(p_namespace) + octet_length(p_aggregate_id) + coalesce(octet_length(p_aggregate_type), 0) > 2600 then
            v_what := 'namespace, aggregate type and aggregate id have more than 2600 bytes, too many to number the event by';
            v_hint := 'Use at most 2600 bytes together, or a hash of the id.';
        elsif p_options ? 'retry' then
            v_what := 'the option retry ' || enqueue_retry_problem(p_options -> 'retry');
            v_hint := 'It has the names and limits of a dispatcher''s backoff.';
        end if;
    end if;
    if v_what is not null then
        raise exception 'outbox: %', p_place || v_what using errcode = 'invalid_parameter_value', hint = v_hint;
    end if;
    return true;
end
$$;

-- enqueue_check_sizes raises which payload is too large.
create function enqueue_check_sizes(p_payloads jsonb[], p_max_bytes integer, p_place text) returns boolean
language plpgsql
as $$
declare
    v_at    bigint;
    v_bytes integer;
begin
    select n, octet_length(payload::text) into v_at, v_bytes from unnest(p_payloads) with ordinality as u (payload, n)
        where octet_length(payload::text) > p_max_bytes order by n limit 1;
    raise exception 'outbox: %', format(p_place, v_at) || format('the payload has %s bytes, more than the limit of %s', v_bytes, p_max_bytes)
        using errcode = 'invalid_parameter_value', hint = 'Store large data elsewhere and send a reference, or raise p_max_bytes.';
end
$$;

-- enqueue_number gives those events that request one the next numbers of their aggregates, in their order, and null to
-- the others. The counters are locked in the order of their keys, so that two batches never wait for each other in a
-- circle. What enqueue_check refuses later gets none here. Where an adopted table numbers its events too, a trigger of the
-- adoption adds the greatest of its numbers to last, for the next ones to be above it.
create function enqueue_number(p_namespaces text[], p_aggregate_types text[], p_aggregate_ids text[], p_options jsonb) returns bigint[]
language sql
as $$
    with requested as materialized (
        select n, namespace, coalesce(aggregate_type, '') as aggregate_type, aggregate_id
        from unnest(p_namespaces, p_aggregate_types, p_aggregate_ids) with ordinality as u (namespace, aggregate_type, aggregate_id, n)
        where case jsonb_typeof(p_options) when 'array' then p_options -> (n - 1)::integer else p_options end -> 'aggregateSequence' = 'true'
          and namespace <> '' and aggregate_id <> ''
          and octet_length(namespace) + octet_length(aggregate_id) + coalesce(octet_length(aggregate_type), 0) <= 2600
    ),
    counters as (
        insert into outbox_aggregate_sequences as s (namespace, aggregate_type, aggregate_id, last, added)
        select namespace, aggregate_type, aggregate_id, count(*), count(*)
        from requested
        group by namespace, aggregate_type, aggregate_id
        order by namespace, aggregate_type, aggregate_id
        on conflict (namespace, aggregate_type, aggregate_id) do update set last = greatest(s.last, excluded.last - excluded.added) + excluded.added
        returning *
    ),
    numbered as (
        select n, last + 1 - row_number() over (partition by namespace, aggregate_type, aggregate_id order by n desc) as sequence
        from requested
        join counters using (namespace, aggregate_type, aggregate_id)
    )
    select array_agg(sequence order by n)
    from generate_series(1, cardinality(p_namespaces)) as n
    left join numbered using (n)
$$;

-- enqueue_renumber takes back the numbers of events that were there before: those behind them move up.
create function enqueue_renumber(
    p_namespaces text[], p_aggregate_types text[], p_aggregate_ids text[], p_ids uuid[], p_added boolean[], p_sequences bigint[]
) returns void
language sql
as $$
    with numbered as materialized (
        select id, namespace, coalesce(aggregate_type, '') as aggregate_type, aggregate_id, added, sequence,
            count(*) filter (where not added) over (partition by namespace, coalesce(aggregate_type, ''), aggregate_id order by n) as free
        from unnest(p_namespaces, p_aggregate_types, p_aggregate_ids, p_ids, p_added, p_sequences)
            with ordinality as u (namespace, aggregate_type, aggregate_id, id, added, sequence, n)
        where sequence is not null
    ),
    counters as (
        update outbox_aggregate_sequences as s
        set last = last - unused.numbers
        from (select namespace, aggregate_type, aggregate_id, count(*) as numbers from numbered where not added group by 1, 2, 3) as unused
        where (s.namespace, s.aggregate_type, s.aggregate_id) = (unused.namespace, unused.aggregate_type, unused.aggregate_id)
    )
    update outbox_events as e
    set aggregate_sequence = numbered.sequence - free
    from numbered
    where e.id = numbered.id and added and free > 0
$$;

-- enqueue_check_data raises where the login's setting outbox.require_data is on and the transaction has written nothing yet: so it is
-- not the transaction of the data. Every text but these turns it on.
create function enqueue_check_data() returns void
language plpgsql
as $$
begin
    if pg_current_xact_id_if_assigned() is null and coalesce(current_setting('outbox.require_data', true), '') <> all ('{"",off,false,no,0}') then
        raise exception 'outbox: enqueue after the data, on the transaction''s own handle: nothing was written in this transaction before'
            using errcode = 'no_active_sql_transaction',
            hint = 'Write the data first (flush an ORM), and enqueue by the same connection, session, client or tx, before its commit. For an event without data: set local outbox.require_data = off.';
    end if;
end
$$;

-- enqueue adds an event in the caller's transaction, and returns its id and whether it is new.
--
-- With a dedupe key that is already there, the id is that of the row that stands. With a p_id that is
-- already there, in the same namespace and topic, it is that one; elsewhere it is an error.
--
-- With p_lock_key, transactions that enqueue for one key take turns, each until it commits: the order
-- of seq is then the order of their commits. Call it last in the transaction, so that others wait for
-- little more than the commit. The lock is one of 1,024 slots by the key's hash: a key shares its turn
-- with one key in a thousand, and a transaction holds at most 1,024 locks. (A lock for each key can fill the
-- server's lock table, and then no client can even connect.)
--
-- p_options are maxAttempts, the retry budget of this row, retry, its backoff, and aggregateSequence, true for the
-- next number of the event's aggregate: transactions that number events of one aggregate take turns, each until it
-- ends. Later versions may know more names: so the arguments never change.
--
-- Where the login's setting outbox.require_data is on, the transaction must have written something before.
--
-- It runs with the owner's rights, so that a producer needs no right on the table and no row gets
-- in unchecked.
create function enqueue(
    p_namespace      text,
    p_topic          text,
    p_payload        jsonb,
    p_event_type     text     default null,
    p_aggregate_type text     default null,
    p_aggregate_id   text     default null,
    p_partition_key  text     default null,
    p_tenant_id      uuid     default null,
    p_dedupe_key     text     default null,
    p_headers        jsonb    default '{}',
    p_delay          interval default '0',
    p_id             uuid     default null,
    p_max_bytes      integer  default 1048576,
    p_lock_key       boolean  default false,
    p_options        jsonb    default '{}',
    out id           uuid,
    out inserted     boolean
)
language plpgsql
security definer
set search_path from current
as $$
#variable_conflict use_column
declare
    v_max_attempts smallint;
    v_retry        jsonb;
    v_sequence     bigint;
begin
    -- What is plainly right is not looked at again. The condition is short because a function's expressions
    -- are made ready once a transaction, which costs more than to compute them. 280 bytes is a row of short texts.
    if (p_headers = '{}' and p_options = '{}' and p_delay >= '0' and p_max_bytes > 0 and p_dedupe_key is null and p_lock_key is false
            and p_namespace is not null and p_topic is not null and p_payload is not null
            and pg_column_size(array[p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id, p_partition_key]) <= 280
            and ('' = any (array[p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id, p_partition_key])) is not true
            and (pg_current_xact_id_if_assigned() is not null or coalesce(current_setting('outbox.require_data', true), '') = '')
        ) is not true then
        if pg_current_xact_id_if_assigned() is null then
            perform enqueue_check_data();
        end if;
        p_options := coalesce(p_options, '{}');
        perform enqueue_check('', p_namespace, p_topic, p_payload is null, p_event_type, p_aggregate_type, p_aggregate_id,
            p_partition_key, p_tenant_id, p_dedupe_key, p_headers, p_delay, p_lock_key, p_options);
        p_event_type     := nullif(p_event_type, '');
        p_aggregate_type := nullif(p_aggregate_type, '');
        p_aggregate_id   := nullif(p_aggregate_id, '');
        p_partition_key  := nullif(p_partition_key, '');
        p_dedupe_key     := nullif(p_dedupe_key, '');
        p_headers        := jsonb_strip_nulls(coalesce(p_headers, '{}')); -- a null makes no header
        p_delay          := coalesce(p_delay, '0');
        p_max_bytes      := coalesce(p_max_bytes, 1048576);
        v_max_attempts   := (p_options ->> 'maxAttempts')::smallint;
        v_retry          := p_options -> 'retry';
        if p_lock_key then -- before the row gets its seq; the hash is that of key_hash
            perform pg_advisory_xact_lock(1869968482, (hashtextextended(coalesce(p_partition_key, p_aggregate_id),
                hashtextextended(p_topic, hashtextextended(p_namespace, 0))) & 1023)::integer);
        end if;
        if p_options -> 'aggregateSequence' = 'true' then -- before the row gets its seq, too
            v_sequence := (enqueue_number(array[p_namespace], array[p_aggregate_type], array[p_aggregate_id], p_options))[1];
        end if;
    end if;

    -- A UUID version 7: the time in milliseconds, the version, and the rest of a random one.
    if p_id is null then
        p_id := encode(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint << 16 | 28672)
            || substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid;

        -- Without a dedupe key nothing can conflict, and an insert that need not look for conflicts is cheaper.
        if p_dedupe_key is null then
            insert into outbox_events (id, key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, retry, headers, payload, next_attempt_at)
            values (p_id, hashtextextended(coalesce(p_partition_key, p_aggregate_id), hashtextextended(p_topic, hashtextextended(p_namespace, 0))),
                octet_length(p_payload::text) + octet_length(p_headers::text) - 2, v_sequence, v_max_attempts, p_tenant_id, p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id,
                p_partition_key, v_retry, p_headers, p_payload, now() + p_delay)
            returning outbox_events.id, size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes into id, inserted;
            if not inserted then
                perform enqueue_check_sizes(array[p_payload], p_max_bytes, '');
            end if;
            return;
        end if;
    end if;

    loop
        insert into outbox_events (id, key_hash, size_bytes, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
        values (p_id, hashtextextended(coalesce(p_partition_key, p_aggregate_id), hashtextextended(p_topic, hashtextextended(p_namespace, 0))),
            octet_length(p_payload::text) + octet_length(p_headers::text) - 2, v_sequence, v_max_attempts, p_tenant_id, p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id,
            p_partition_key, p_dedupe_key, v_retry, p_headers, p_payload, now() + p_delay)
        on conflict do nothing
        returning outbox_events.id, size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes into id, inserted;
        if inserted then
            return;
        elsif not inserted then
            perform enqueue_check_sizes(array[p_payload], p_max_bytes, '');
        end if;

        inserted := false;
        select e.id into id from outbox_events as e
            where e.namespace = p_namespace and e.topic = p_topic and e.dedupe_key = p_dedupe_key;
        exit when found;
        select e.id into id from outbox_events as e where e.id = p_id and e.namespace = p_namespace and e.topic = p_topic;
        exit when found;
        if exists (select from outbox_events as e where e.id = p_id) then
            raise exception 'outbox: the id % is that of an event of another namespace or topic', p_id
                using errcode = 'unique_violation', hint = 'Make a new id for each event, or leave out p_id.';
        end if; -- else retention has just removed the row that stood: insert again
    end loop;
    if v_sequence is not null then -- no event has the number: the next one gets it
        update outbox_aggregate_sequences as s set last = last - 1
            where s.namespace = p_namespace and s.aggregate_type = coalesce(p_aggregate_type, '') and s.aggregate_id = p_aggregate_id;
    end if;
end
$$;

revoke all on function outbox_key_hash, outbox_values from public;
revoke all on function enqueue from public;
revoke all on function enqueue_check from public;
revoke all on function enqueue_check_data from public;
revoke all on function enqueue_number from public;
revoke all on function enqueue_renumber from public;
revoke all on function enqueue_check_sizes from public;
revoke all on function enqueue_retry_problem from public;
