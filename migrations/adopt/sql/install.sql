-- What an adoption keeps in the outbox's schema. The first "dispatcher adopt shadow" makes it; dispatchers need no right
-- on it.
create table if not exists outbox_adoptions (
    name          text        not null primary key,
    layout        text        not null,
    source_schema text        not null,
    source_table  text        not null,
    namespace     text        not null,
    topic         text        not null,
    columns       jsonb       not null default '{}',
    slot          text        not null default '',
    publication   text        not null default '',
    start         text,
    state         text        not null check (state in ('Shadow', 'Live', 'Returning')),
    since         timestamptz not null default clock_timestamp(),
    cutover_at    timestamptz,
    open          text        not null default '',
    look          text        not null default '',
    missing       bigint      not null default 0,
    waiting       bigint      not null default 0,
    look_after    timestamptz not null default '-infinity'
);

comment on table outbox_adoptions is 'One row per outbox table of another layout that is taken over.';
comment on column outbox_adoptions.start is 'The greatest position that the table had when the shadow began: its id, or its time of creation. Null: it was empty.';
comment on column outbox_adoptions.open is 'The condition of rows that are to be sent, where one column cannot say it.';
comment on column outbox_adoptions.look is 'The statement that counts, for outbox_adoption_rows.';

create table if not exists outbox_adopted (
    adoption  text    not null,
    their_id  text    not null,
    version   integer not null default 0,
    event_id  uuid,
    live      boolean not null default false,
    refused   text,
    seq       bigint  not null generated always as identity,
    their_row json,
    primary key (adoption, their_id, version)
);

comment on table outbox_adopted is 'One row per row of theirs since the shadow began, and the event that it is.';
comment on column outbox_adopted.version is '0, and one more where another event has its id or its key, and each time that a producer opens the row again.';
comment on column outbox_adopted.live is 'Whether the event was added to outbox_events.';
comment on column outbox_adopted.refused is 'Why the outbox does not take the row. It stays open in their table.';
comment on column outbox_adopted.seq is 'The order of the rows that are kept.';
comment on column outbox_adopted.their_row is 'The row, where their table may not have it any more: Debezium reads it, or their worker deletes what it has sent. A JSON null: it was deleted before its event was delivered.';

create index if not exists outbox_adopted_refused on outbox_adopted (adoption) where refused is not null;
create index if not exists outbox_adopted_kept on outbox_adopted (adoption, seq) where live and their_row is not null;

-- outbox_adopt adds the event of a row of theirs, notes it, and returns it; it may have been added before. It raises what enqueue
-- would raise.
--
-- A row that was added before is added again only when it was inserted (p_new), has other content, or its event is done: a worker
-- of theirs that reports a failure late opens the row too. An id that another event has gets a version, since a second
-- event is allowed and a lost one is not.
create or replace function outbox_adopt(
    p_adoption text, p_id text, p_dedupe_key text, p_namespace text,
    p_topic text, p_payload jsonb, p_event_type text, p_aggregate_type text, p_aggregate_id text, p_partition_key text,
    p_tenant_id uuid, p_sequence bigint, p_headers jsonb, p_created timestamptz, p_due timestamptz, p_attempts integer, p_max_attempts integer, p_retry jsonb,
    p_row json, p_new boolean
) returns uuid
language plpgsql
set search_path from current
as $$
declare
    v_before outbox_adopted;
    v_event  uuid;
    v_seq    bigint;
begin
    p_headers := coalesce(p_headers, '{}'); -- the one place where a null of theirs becomes something
    p_created := coalesce(p_created, now());
    p_due := coalesce(p_due, clock_timestamp()); -- in the order of the rows; when it was created may be of another zone
    p_attempts := coalesce(p_attempts, 0);
    perform enqueue_check('', p_namespace, p_topic, p_payload is null, p_event_type, p_aggregate_type, p_aggregate_id,
        p_partition_key, p_tenant_id, p_dedupe_key, p_headers, '0', false, jsonb_strip_nulls(jsonb_build_object('retry', p_retry)));
    if octet_length(p_payload::text) > 1048576 then
        perform enqueue_check_sizes(array[p_payload], 1048576, '');
    end if;

    select * into v_before from outbox_adopted where adoption = p_adoption and their_id = p_id order by version desc limit 1;
    if found then -- it is taken now
        update outbox_adopted set refused = null where adoption = p_adoption and their_id = p_id and refused is not null;
    end if;
    if not p_new and v_before.live and v_before.their_row is null and exists (
            select from outbox_events where id = v_before.event_id and status in ('pending', 'processing')
                and (payload, topic, headers) = (p_payload, p_topic, jsonb_strip_nulls(p_headers))
                and (event_type, aggregate_type, aggregate_id, partition_key) is not distinct from
                    (nullif(p_event_type, ''), nullif(p_aggregate_type, ''), nullif(p_aggregate_id, ''), nullif(p_partition_key, ''))) then
        return v_before.event_id;
    end if;
    for v_version in coalesce(v_before.version + v_before.live::integer, 0) .. 1000000 loop
        v_event := case when v_version = 0 and p_id ~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' then p_id
            else overlay(overlay(md5(format('%s/%s/%s', p_adoption, p_id, v_version)) placing '3' from 13) placing '8' from 17) end;
        if p_attempts > 0 then -- the journal hears of it first: no producer begins with attempts
            insert into outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
            select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), v_event, 'adopt', p_namespace, p_topic, session_user
            from outbox_journal_settings where enabled;
        end if;
        insert into outbox_events (id, created_at, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type,
            aggregate_id, partition_key, dedupe_key, retry, headers, payload, next_attempt_at, attempts)
        values (v_event, p_created, p_sequence, p_max_attempts, p_tenant_id, p_namespace, p_topic, nullif(p_event_type, ''), nullif(p_aggregate_type, ''),
            nullif(p_aggregate_id, ''), nullif(p_partition_key, ''), p_dedupe_key || case when v_version > 0 then '#' || v_version else '' end, p_retry,
            jsonb_strip_nulls(p_headers), p_payload, p_due, p_attempts)
        on conflict do nothing;
        continue when not found;
        insert into outbox_adopted (adoption, their_id, version, event_id, live, their_row)
        values (p_adoption, p_id, v_version, v_event, true, p_row)
        on conflict (adoption, their_id, version) do update set event_id = excluded.event_id, live = true, refused = null, their_row = excluded.their_row
        returning seq into v_seq;
        -- In other isolation levels it is an error when another has removed a note meanwhile.
        if p_row is not null and v_seq % 20 = 0 and current_setting('transaction_isolation') = 'read committed' then
            perform outbox_adopt_prune(p_adoption);
        end if;
        return v_event;
    end loop;
    raise exception 'row % of adoption % was opened too often', p_id, p_adoption;
end
$$;

-- outbox_adopt_note notes a row that has no event, and why the outbox does not take it: a producer never gets its error. A
-- table whose rows are kept has notes of these alone.
create or replace function outbox_adopt_note(p_adoption text, p_id text, p_reason text, p_row json) returns void
language sql
set search_path from current
as $$
    insert into outbox_adopted (adoption, their_id, their_row, refused)
    select p_adoption, p_id, p_row, left(p_reason, 500) where p_reason is not null or p_row is null
    on conflict (adoption, their_id, version) do update set refused = excluded.refused
$$;

-- outbox_adopt_gone removes the notes of a row that was deleted. Their clean-up deletes what is complete, and its event may not
-- be delivered yet: what is left waits.
create or replace function outbox_adopt_gone(p_adoption text, p_id text, p_deletes boolean) returns void
language plpgsql
set search_path from current
as $$
declare
    v_prune boolean;
begin
    delete from outbox_adopted where adoption = p_adoption and their_id = p_id and (not live or not p_deletes
        and not exists (select from outbox_events as e where e.id = event_id and e.status in ('pending', 'processing')));
    if not p_deletes then
        with kept as (
            update outbox_adopted set their_row = 'null' where adoption = p_adoption and their_id = p_id returning seq
        )
        select coalesce(bool_or(seq % 20 = 0), false) into v_prune from kept;
        if v_prune and current_setting('transaction_isolation') = 'read committed' then
            perform outbox_adopt_prune(p_adoption);
        end if;
    end if;
end
$$;

-- outbox_adopt_prune looks at the oldest hundred rows that an adoption keeps, and removes those whose events are delivered.
-- Those of dead events go to the end, so that they do not keep others from being looked at.
create or replace function outbox_adopt_prune(p_adoption text) returns void
language sql
set search_path from current
as $$
    with oldest as (
        select seq, event_id from outbox_adopted where adoption = p_adoption and live and their_row is not null
        order by seq limit 100 for update skip locked
    ), done as (
        select oldest.seq, coalesce(event.status = 'dead', false) as dead
        from oldest left join outbox_events as event on event.id = oldest.event_id
        where event.live is not true
    ), removed as (
        delete from outbox_adopted as a using done
        where a.adoption = p_adoption and a.live and a.their_row is not null and a.seq = done.seq and not done.dead
    )
    update outbox_adopted as a set seq = default from done
    where a.adoption = p_adoption and a.live and a.their_row is not null and a.seq = done.seq and done.dead
$$;

-- outbox_adopt_log reads the rows that were inserted into a table and that the reader of a slot has not confirmed, in the
-- order of their commits: what pgoutput's messages Relation and Insert hold. The slot stays where it is.
create or replace function outbox_adopt_log(p_slot text, p_publication text, p_table regclass) returns setof json
language plpgsql
set search_path from current
as $$
declare
    v_data    bytea;
    v_table   bigint;
    v_tables  jsonb := '{}'; -- of each partition the columns: the name, and whether the value is JSON
    v_columns jsonb;
    v_column  jsonb;
    v_at      integer;
    v_length  integer;
    v_name    text;
    v_value   text;
    v_row     text;
begin
    for v_data, v_table in
        select data, relation
        from (
            select change.data, ('x' || encode(substr(change.data, 2, 4), 'hex'))::bit(32)::bigint as relation
            from pg_logical_slot_peek_binary_changes(p_slot, null, null,
                'proto_version', '1', 'publication_names', quote_ident(p_publication)) as change
            where get_byte(change.data, 0) in (ascii('R'), ascii('I'))
        ) as message
        where relation in (select p_table::oid::bigint union all select relid::oid::bigint from pg_partition_tree(p_table))
    loop
        if get_byte(v_data, 0) = ascii('R') then
            v_at := 6;
            for _ in 1 .. 2 loop -- the names of the schema and of the table
                v_at := v_at + position('\x00'::bytea in substr(v_data, v_at));
            end loop;
            v_columns := '[]';
            v_length := get_byte(v_data, v_at) * 256 + get_byte(v_data, v_at + 1);
            v_at := v_at + 3;
            for _ in 1 .. v_length loop
                v_at := v_at + 1;
                v_length := position('\x00'::bytea in substr(v_data, v_at)) - 1;
                v_name := convert_from(substr(v_data, v_at, v_length), pg_client_encoding());
                v_at := v_at + v_length + 1;
                v_columns := v_columns || jsonb_build_array(jsonb_build_array(v_name, exists (
                    select from pg_type
                    where oid::bigint = ('x' || encode(substr(v_data, v_at, 4), 'hex'))::bit(32)::bigint
                        and (oid in ('json'::regtype, 'jsonb'::regtype) or typbasetype in ('json'::regtype, 'jsonb'::regtype)))));
                v_at := v_at + 8;
            end loop;
            v_tables := v_tables || jsonb_build_object(v_table, v_columns);
            continue;
        end if;
        v_at := 9;
        v_row := '';
        for v_column in select value from jsonb_array_elements(v_tables -> v_table::text) loop
            v_row := v_row || case when v_row = '' then '{' else ',' end || (v_column -> 0)::text || ':';
            if get_byte(v_data, v_at - 1) <> ascii('t') then
                v_row := v_row || 'null';
                v_at := v_at + 1;
                continue;
            end if;
            v_length := ('x' || encode(substr(v_data, v_at + 1, 4), 'hex'))::bit(32)::integer;
            v_value := convert_from(substr(v_data, v_at + 5, v_length), pg_client_encoding());
            v_row := v_row || case when (v_column -> 1)::boolean then v_value else to_json(v_value)::text end;
            v_at := v_at + 5 + v_length;
        end loop;
        return next (v_row || '}')::json;
    end loop;
end
$$;

-- With their arguments: the trigger's function of an adoption may have such a name too.
revoke all on function outbox_adopt, outbox_adopt_note(text, text, text, json), outbox_adopt_gone(text, text, boolean), outbox_adopt_prune(text),
    outbox_adopt_log(text, text, regclass) from public;
