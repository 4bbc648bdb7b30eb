-- oldest-reader: 1
--
-- The outbox: events, dead letters, and the one function that producers call.
-- Names are unqualified: the migrator sets search_path to the schema that the user chose.

-- Columns that never change come first, the payload too. An UPDATE then writes only the tail of
-- the row to the WAL: claim and ack together take half the bytes.
create table outbox_events (
    id              uuid        not null,
    seq             bigint      not null generated always as identity,
    created_at      timestamptz not null default now(),
    key_hash        bigint      generated always as (hashtextextended(
                                    coalesce(nullif(partition_key, ''), nullif(aggregate_id, '')),
                                    hashtextextended(topic, hashtextextended(namespace, 0)))) stored,
    payload_bytes   integer     not null generated always as (octet_length(payload::text)) stored,
    tenant_id       uuid,
    namespace       text        not null,
    topic           text        not null,
    event_type      text,
    aggregate_type  text,
    aggregate_id    text,
    partition_key   text,
    dedupe_key      text,
    headers         jsonb       not null default '{}',
    payload         jsonb       not null,

    -- From here on, what transitions change. Fixed-width columns first, so that nothing is padded.
    next_attempt_at timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    locked_until    timestamptz,
    attempts        integer     not null default 0,
    locked_by       uuid,
    live            boolean     not null generated always as (status in ('pending', 'processing')) stored,
    status          text        not null default 'pending',
    dead_reason     text,
    last_error      text,

    constraint outbox_events_pkey primary key (id),
    constraint outbox_events_named check (namespace <> '' and topic <> ''),
    constraint outbox_events_headers_object check (jsonb_typeof(headers) = 'object'),
    constraint outbox_events_status check (status in ('pending', 'processing', 'delivered', 'dead')),
    constraint outbox_events_dead_reason check ((status = 'dead') = (dead_reason is not null))
) with (
    -- More than half a page is left for the claimed versions of its rows, which are longer: claims
    -- stay HOT and touch no index.
    fillfactor = 45,
    -- By threshold, so that a claim never walks far over rows that are gone; and a small share of
    -- the table, because each vacuum reads the whole primary key, with its delivered rows.
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_limit = 1000,
    -- Always: without it vacuum may leave the live index full of entries for rows that are gone.
    vacuum_index_cleanup = on
);

comment on table outbox_events is 'One row per event. Producers call enqueue(); dispatchers move the status.';
comment on column outbox_events.seq is 'Order of insertion. It has gaps that fill late: never a cursor.';
comment on column outbox_events.key_hash is 'The ordering key: partition_key, else aggregate_id, of its namespace and topic. Null for none.';
comment on column outbox_events.payload_bytes is 'Size of the payload as text: what it takes in a dispatcher''s memory.';
comment on column outbox_events.next_attempt_at is 'When the row may be claimed. The one field that schedules a retry.';
comment on column outbox_events.attempts is 'Deliveries begun. Rises at each claim; published as the fencing token.';
comment on column outbox_events.locked_by is 'The worker that holds the lease, until locked_until.';
comment on column outbox_events.live is 'Not yet delivered or dead. It is in the index so that status need not be.';

-- The one index of the engine: claims, retries and expired leases are all one range of it. It
-- names no column that a claim changes.
create index outbox_events_live on outbox_events (namespace, topic, next_attempt_at, id) where live;

-- The rows of a key in their order, for dispatchers that keep it (CONTRACT C-50). It holds two numbers
-- and nothing of events without a key, and claims do not touch it either. The hash has 64 bits: two
-- keys with the same one, which would wait for each other, are not to be expected.
create index outbox_events_key on outbox_events (key_hash, seq) where live and key_hash is not null;

-- CONTRACT C-1.
create unique index outbox_events_dedupe on outbox_events (namespace, topic, dedupe_key) where dedupe_key is not null;

-- One record per death (CONTRACT C-41). A replay or a discard marks it. There is no foreign key:
-- it would lock the event's row once more at each death.
create table outbox_dead_letters (
    id          bigint      not null generated always as identity primary key,
    event_id    uuid        not null,
    namespace   text        not null,
    topic       text        not null,
    seq         bigint,
    key_hash    bigint,
    reason      text        not null,
    details     jsonb       not null default '{}',
    attempts    integer     not null,
    died_at     timestamptz not null default now(),
    resolution  text,
    resolved_at timestamptz,
    resolved_by text,

    constraint outbox_dead_letters_keyed check (key_hash is null or seq is not null),
    constraint outbox_dead_letters_reason check (reason in ('max_retries_exceeded', 'poison_message',
        'schema_validation_failed', 'processing_timeout', 'permanent_failure')),
    constraint outbox_dead_letters_resolution check (resolution in ('replayed', 'discarded')),
    constraint outbox_dead_letters_resolved check (num_nulls(resolution, resolved_at, resolved_by) in (0, 3))
);

comment on table outbox_dead_letters is 'One record per death of an event: why, and what a person did about it.';

-- The deaths that nobody has handled yet.
create index outbox_dead_letters_open on outbox_dead_letters (namespace, topic, event_id) where resolution is null;

-- Those that later events of their key may have to wait for.
create index outbox_dead_letters_key on outbox_dead_letters (key_hash, seq) where resolution is null and key_hash is not null;

-- enqueue adds an event in the caller's transaction, and returns its id and whether it is new.
-- With a dedupe key that is already there, the id is that of the row that stands (CONTRACT C-11).
--
-- With p_lock_key, transactions that enqueue for one key take turns, each until it commits: the order
-- of seq is then the order of their commits. Call it last in the transaction, so that others wait for
-- little more than the commit, and in one order of keys, so that no two wait for each other.
--
-- It runs with the owner's rights, so that a producer needs no right on the table and no row gets
-- in unchecked. There is one enqueue: a migration that changes its arguments drops it first.
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
    p_lock_key       boolean  default false
) returns table (id uuid, inserted boolean)
language plpgsql
security definer
set search_path from current
as $$
#variable_conflict use_column
declare
    v_dedupe_key text     := nullif(p_dedupe_key, '');
    v_delay      interval := coalesce(p_delay, '0');
    v_max_bytes  integer  := coalesce(p_max_bytes, 1048576);
    v_key        text     := coalesce(nullif(p_partition_key, ''), nullif(p_aggregate_id, ''));
    v_id         uuid;
begin
    if coalesce(p_namespace, '') = '' then
        raise exception 'outbox: the namespace is missing' using errcode = 'invalid_parameter_value',
            hint = 'Give p_namespace the namespace that a dispatcher serves.';
    elsif coalesce(p_topic, '') = '' then
        raise exception 'outbox: the topic is missing' using errcode = 'invalid_parameter_value',
            hint = 'Give p_topic the topic of the event.';
    elsif p_payload is null then
        raise exception 'outbox: the payload is missing' using errcode = 'invalid_parameter_value',
            hint = 'Give p_payload a JSON value; ''null''::jsonb is one.';
    elsif octet_length(p_payload::text) > v_max_bytes then
        raise exception 'outbox: the payload has % bytes, more than the limit of %',
            octet_length(p_payload::text), v_max_bytes using errcode = 'invalid_parameter_value',
            hint = 'Store large data elsewhere and send a reference, or raise p_max_bytes.';
    elsif jsonb_typeof(p_headers) <> 'object' then
        raise exception 'outbox: the headers are not a JSON object' using errcode = 'invalid_parameter_value',
            hint = 'Give p_headers an object of strings.';
    elsif v_delay < '0' then
        raise exception 'outbox: the delay is negative' using errcode = 'invalid_parameter_value',
            hint = 'Give p_delay 0 or more.';
    elsif p_tenant_id is not null and v_dedupe_key is not null and not (
            strpos(v_dedupe_key, '/') > 0 and lower(split_part(v_dedupe_key, '/', 1))
                in (p_tenant_id::text, replace(p_tenant_id::text, '-', ''))) then
        raise exception 'outbox: the dedupe key does not start with the tenant id' using errcode = 'invalid_parameter_value',
            hint = 'Start p_dedupe_key with the UUID of p_tenant_id and a slash.';
    elsif p_lock_key and v_key is null then
        raise exception 'outbox: there is no key to lock' using errcode = 'invalid_parameter_value',
            hint = 'Give p_aggregate_id or p_partition_key, or leave out p_lock_key.';
    end if;

    -- Before the row gets its seq; key_hash is computed alike.
    if p_lock_key then
        perform pg_advisory_xact_lock(hashtextextended(v_key, hashtextextended(p_topic, hashtextextended(p_namespace, 0))));
    end if;

    -- A UUID version 7: a random one with the time in its first 6 bytes and the version's bits set.
    v_id := coalesce(p_id, encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
        52, 1), 53, 1), 'hex')::uuid);

    -- Without a key nothing can conflict, and an insert that need not look for conflicts is cheaper.
    if v_dedupe_key is null then
        insert into outbox_events (id, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, headers, payload, next_attempt_at)
        values (v_id, p_tenant_id, p_namespace, p_topic, nullif(p_event_type, ''), nullif(p_aggregate_type, ''),
            nullif(p_aggregate_id, ''), nullif(p_partition_key, ''), coalesce(p_headers, '{}'), p_payload,
            now() + v_delay);
        id := v_id;
        inserted := true;
        return next;
        return;
    end if;

    loop
        insert into outbox_events (id, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, headers, payload, next_attempt_at)
        values (v_id, p_tenant_id, p_namespace, p_topic, nullif(p_event_type, ''), nullif(p_aggregate_type, ''),
            nullif(p_aggregate_id, ''), nullif(p_partition_key, ''), v_dedupe_key, coalesce(p_headers, '{}'),
            p_payload, now() + v_delay)
        on conflict (namespace, topic, dedupe_key) where dedupe_key is not null do nothing;
        if found then
            return query select v_id, true;
            return;
        end if;

        return query select e.id, false from outbox_events as e
            where e.namespace = p_namespace and e.topic = p_topic and e.dedupe_key = v_dedupe_key;
        exit when found; -- else retention has just removed the row that stood: insert again
    end loop;
end
$$;

revoke all on function enqueue from public;
