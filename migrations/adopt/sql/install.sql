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
    start         text,
    state         text        not null check (state in ('Shadow', 'Live', 'Returning')),
    since         timestamptz not null default clock_timestamp(),
    cutover_at    timestamptz
);

comment on table outbox_adoptions is 'One row per outbox table of another layout that is taken over.';
comment on column outbox_adoptions.start is 'The greatest position that the table had when the shadow began: its id, or its time of creation. Null: it was empty.';
comment on column outbox_adoptions.since is 'When the shadow began.';

create table if not exists outbox_adopted (
    adoption text    not null,
    their_id text    not null,
    version  integer not null default 0,
    event_id uuid    not null,
    counted  boolean not null,
    live     boolean not null default false,
    refused  text,
    primary key (adoption, their_id, version)
);

comment on table outbox_adopted is 'One row per row of theirs since the shadow began, and the event that it is.';
comment on column outbox_adopted.version is '0, and one more each time that a producer opens the row again.';
comment on column outbox_adopted.counted is 'Whether its position is after the start, so that adopt status counts it.';
comment on column outbox_adopted.live is 'Whether the event was added to outbox_events.';
comment on column outbox_adopted.refused is 'Why the outbox does not take the row. It stays open in their table.';

create index if not exists outbox_adopted_refused on outbox_adopted (adoption) where refused is not null;

-- outbox_adopt notes a row of theirs, and with p_live adds its event. It raises what enqueue would raise.
--
-- A row that was added before is added again only when it is p_changed, or when its event is done: a worker
-- of theirs that reports a failure late opens the row too. An id that another event has gets a version, since a second
-- event is allowed and a lost one is not.
create or replace function outbox_adopt(
    p_adoption text, p_id text, p_dedupe_key text, p_counted boolean, p_live boolean, p_changed boolean, p_namespace text,
    p_topic text, p_payload jsonb, p_event_type text, p_aggregate_type text, p_aggregate_id text, p_partition_key text,
    p_headers jsonb, p_created timestamptz, p_due timestamptz, p_attempts integer, p_max_attempts integer, p_retry jsonb
) returns void
language plpgsql
set search_path from current
as $$
declare
    v_before outbox_adopted;
    v_event  uuid;
    v_key    text;
begin
    perform enqueue_check('', p_namespace, p_topic, p_payload is null, p_event_type, p_aggregate_type, p_aggregate_id,
        p_partition_key, null, p_dedupe_key, p_headers, '0', false, jsonb_strip_nulls(jsonb_build_object('retry', p_retry)));
    if octet_length(p_payload::text) > 1048576 then
        perform enqueue_check_sizes(array[p_payload], 1048576, '');
    end if;

    select * into v_before from outbox_adopted where adoption = p_adoption and their_id = p_id order by version desc limit 1;
    if v_before.live and (not p_live or not p_changed and exists (
            select from outbox_events where id = v_before.event_id and status in ('pending', 'processing'))) then
        return;
    end if;
    for v_version in coalesce(v_before.version + v_before.live::integer, 0) .. 1000000 loop
        v_event := case when v_version = 0 and p_id ~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' then p_id
            else overlay(overlay(md5(format('%s/%s/%s', p_adoption, p_id, v_version)) placing '3' from 13) placing '8' from 17) end;
        v_key := p_dedupe_key || case when v_version > 0 then '#' || v_version else '' end;
        if p_live and p_attempts > 0 then -- the journal hears of it first: no producer begins with attempts
            insert into outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
            select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), v_event, 'adopt', p_namespace, p_topic, session_user
            from outbox_journal_settings where enabled;
        end if;
        if p_live then
            insert into outbox_events (id, created_at, max_attempts, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, dedupe_key, retry, headers, payload, next_attempt_at, attempts)
            values (v_event, p_created, p_max_attempts, p_namespace, p_topic, nullif(p_event_type, ''), nullif(p_aggregate_type, ''),
                nullif(p_aggregate_id, ''), nullif(p_partition_key, ''), v_key, p_retry, jsonb_strip_nulls(p_headers), p_payload,
                p_due, p_attempts)
            on conflict do nothing;
            continue when not found;
        end if;
        insert into outbox_adopted (adoption, their_id, version, event_id, counted, live)
        values (p_adoption, p_id, v_version, v_event, p_counted and v_version = 0, p_live)
        on conflict (adoption, their_id, version) do update set event_id = excluded.event_id, live = excluded.live, refused = null;
        return;
    end loop;
end
$$;

-- outbox_adopt_refuse notes a row that outbox_adopt does not take, and why: a producer never gets its error.
create or replace function outbox_adopt_refuse(p_adoption text, p_id text, p_counted boolean, p_reason text) returns void
language sql
set search_path from current
as $$
    insert into outbox_adopted (adoption, their_id, event_id, counted, refused)
    values (p_adoption, p_id, '00000000-0000-0000-0000-000000000000', p_counted, left(p_reason, 500))
    on conflict (adoption, their_id, version) do update set refused = excluded.refused
$$;

revoke all on function outbox_adopt, outbox_adopt_refuse from public;
