-- oldest-reader: 1
--
-- The journal: one append-only record for each change of an event's row, when outbox_journal_set has turned it on.
-- Triggers write it, so that it has every change: of dispatchers, of producers and of people. While it is off,
-- no trigger exists, and it costs nothing.

-- Partitioned by day, in UTC. outbox_journal_keep makes the days ahead, and removes those that are old. A record of a
-- day without a partition goes to the default partition, so that no insert of an event ever fails for it.
create table outbox_journal (
    at              timestamptz not null,
    lsn             pg_lsn      not null,
    xid             xid8        not null,
    event_id        uuid,
    seq             bigint,
    lease           bigint,
    lease_before    bigint,
    attempts        integer,
    attempts_before integer,
    worker          uuid,
    operation       text        not null,
    before          text,
    after           text,
    namespace       text        not null default '',
    topic           text        not null default '',
    login           text        not null,
    reason          text,
    replay          uuid,
    digest          bytea
) partition by range (at);

comment on table outbox_journal is 'One record per change of an event''s row, while the journal is on. Never a payload.';
comment on column outbox_journal.at is 'When, on the database''s clock, to the statement.';
comment on column outbox_journal.lsn is 'The position of the server''s WAL then. It orders the records of an event.';
comment on column outbox_journal.xid is 'The transaction.';
comment on column outbox_journal.event_id is 'The event. Null for checkpoint and truncate, which are about all of them.';
comment on column outbox_journal.lease is 'The lease number, which is the fencing token, after the change.';
comment on column outbox_journal.worker is 'Who holds the row after it, else who held it before.';
comment on column outbox_journal.operation is 'insert, claim, ack, nack, dead, release, extend, replay, delete (by retention); resolve, reopen and forget, of its dead letter; edit, of what never changes, and change, for what no engine does; truncate; checkpoint, where the journal begins.';
comment on column outbox_journal.before is 'The status before. Null: there was no row.';
comment on column outbox_journal.after is 'The status after. Null: the row is gone.';
comment on column outbox_journal.login is 'The session''s user.';
comment on column outbox_journal.reason is 'Why it is dead. Of resolve and reopen: the resolution, or unserved. Of forget: retention, where that removed a resolved one. Of edit: the columns.';
comment on column outbox_journal.replay is 'Of resolve and reopen: the operation that did it, the id in outbox_replays.';
comment on column outbox_journal.digest is 'Of insert and edit: SHA-256 over what never changes, payload and headers too.';

create index outbox_journal_event on outbox_journal (event_id);

-- Its records are removed by rows, so it alone has an index on their time.
create table outbox_journal_default partition of outbox_journal default;
create index outbox_journal_default_at on outbox_journal_default (at);

-- How the journal is set. One row.
create table outbox_journal_settings (
    one       boolean     not null default true primary key check (one),
    enabled   boolean     not null default false,
    retention interval    not null default '7 days' check (retention >= '1 day'),
    since     timestamptz not null default now()
);

comment on table outbox_journal_settings is 'How the journal is set; outbox_journal_set changes it. One row.';
comment on column outbox_journal_settings.retention is 'How long a record is kept at least. Whole days are removed.';
comment on column outbox_journal_settings.since is 'From when on the journal has every change.';

insert into outbox_journal_settings default values;

-- outbox_journal_digest is SHA-256 over the columns that never change. It is one expression, so that the planner can put it in
-- the place of the call.
create function outbox_journal_digest(e outbox_events) returns bytea
language sql stable
as $$
    select sha256(convert_to(jsonb_build_array(e.seq, extract(epoch from e.created_at), e.key_hash, e.aggregate_sequence, e.size_bytes,
        e.tenant_id, e.namespace, e.topic, e.event_type, e.aggregate_type, e.aggregate_id, e.partition_key,
        e.dedupe_key, e.retry, e.headers, e.payload)::text, 'UTF8'))
$$;

-- The triggers' functions run with the owner's rights: no other login may write the journal. One for each kind of
-- statement, since they see its rows as tables: a batch is one insert.
create function outbox_journal_added() returns trigger
language plpgsql security definer set search_path from current
as $$
declare
    v_at  timestamptz := clock_timestamp();
    v_lsn pg_lsn      := pg_current_wal_insert_lsn();
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, attempts, worker, operation, after, namespace, topic, login, reason,
        digest)
    select v_at, v_lsn, pg_current_xact_id(), id, seq, lease, attempts, locked_by, 'insert', status, namespace, topic, session_user, dead_reason,
        outbox_journal_digest(row(rows_after.*)::outbox_events)
    from rows_after;
    return null;
end
$$;

-- A hash join, whatever the number of rows was when the plan was made, and whatever the function that makes the change has set
-- for its own plans: what a function sets holds for the triggers that its statements fire.
create function outbox_journal_changed() returns trigger
language plpgsql security definer set search_path from current set enable_hashjoin = on set enable_nestloop = off
as $$
declare
    v_at  timestamptz := clock_timestamp();
    v_lsn pg_lsn      := pg_current_wal_insert_lsn();
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, lease_before, attempts, attempts_before, worker, operation,
        before, after, namespace, topic, login, reason)
    select v_at, v_lsn, pg_current_xact_id(), a.id, a.seq, a.lease, b.lease, a.attempts, b.attempts, coalesce(a.locked_by, b.locked_by),
        case
            when a.status = 'processing' and a.lease <> b.lease then 'claim'
            when a.status = 'processing' and b.status = 'processing' and a.attempts = b.attempts and a.locked_by = b.locked_by
                and a.locked_until <> b.locked_until then 'extend'
            when a.status = 'processing' and b.status = 'processing' and a.suspicion <> b.suspicion then 'begin'
            when b.status = 'processing' and a.status = 'delivered' then 'ack'
            when b.status = 'processing' and a.status = 'pending' and a.attempts = b.attempts then 'nack'
            when b.status = 'processing' and a.status = 'pending' then 'release'
            when b.status in ('pending', 'processing') and a.status = 'dead' then 'dead'
            when b.status = 'dead' and a.status = 'pending' then 'replay'
            else 'change'
        end,
        b.status, a.status, a.namespace, a.topic, session_user, a.dead_reason
    from rows_after as a join rows_before as b using (id);
    return null;
end
$$;

-- Columns that never change. No statement of an engine names them, so this trigger, which is for them alone, costs it nothing.
create function outbox_journal_edited() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, lease_before, attempts, attempts_before, worker, operation,
        before, after, namespace, topic, login, reason, digest)
    values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), old.id, old.seq, old.lease, old.lease, old.attempts, old.attempts,
        old.locked_by, 'edit', old.status, old.status, old.namespace, old.topic, session_user,
        (select string_agg(key, ', ' order by key) from jsonb_each(to_jsonb(old)) where value <> to_jsonb(new) -> key and key = any (tg_argv)),
        outbox_journal_digest(new));
    return null;
end
$$;

-- A row that an engine removes while it is leased is delivered, where rows are not kept. Engines and retention say in their
-- statements that they are it: a removal by any other statement is a change.
create function outbox_journal_removed() returns trigger
language plpgsql security definer set search_path from current
as $$
declare
    v_at  timestamptz := clock_timestamp();
    v_lsn pg_lsn      := pg_current_wal_insert_lsn();
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, lease_before, attempts, attempts_before, worker, operation,
        before, namespace, topic, login)
    select v_at, v_lsn, pg_current_xact_id(), id, seq, lease, lease, attempts, attempts, locked_by,
        case
            when status = 'processing' and current_setting('outbox.removal', true) = 'ack' then 'ack'
            when status <> 'processing' and current_setting('outbox.removal', true) = 'retention' then 'delete'
            else 'change'
        end,
        status, namespace, topic, session_user
    from rows_before;
    return null;
end
$$;

create function outbox_journal_truncated() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox_journal (at, lsn, xid, operation, login)
    values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), 'truncate', session_user);
    return null;
end
$$;

-- What became of a dead letter. The event's row may be gone in the same statement. A hash join: see outbox_journal_changed.
create function outbox_journal_resolved() returns trigger
language plpgsql security definer set search_path from current set enable_hashjoin = on set enable_nestloop = off
as $$
begin
    if tg_op = 'DELETE' then
        insert into outbox_journal (at, lsn, xid, event_id, seq, operation, namespace, topic, login, reason)
        select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), event_id, seq, 'forget', namespace, topic, session_user,
            case when resolution is not null then nullif(current_setting('outbox.removal', true), '') end
        from rows_before;
        return null;
    end if;
    insert into outbox_journal (at, lsn, xid, event_id, seq, operation, namespace, topic, login, reason, replay)
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), a.event_id, a.seq,
        case when a.resolution is null then 'reopen' else 'resolve' end, a.namespace, a.topic, session_user,
        coalesce(a.resolution, b.resolution), a.replay_id
    from rows_after as a join rows_before as b using (id)
    where a.resolution is distinct from b.resolution;
    return null;
end
$$;

-- outbox_journal_keep removes the days that are older than the retention, and creates the next ones. It returns how many
-- it removed, and creates none while it does, so whoever calls it calls it until that is 0: a creation that fails undoes no removal. The
-- dispatchers' retention calls it. It has no argument, so that its caller can remove nothing else.
--
-- A day is emptied first, which locks that day alone: nothing writes to it any more. Dropping the table locks the
-- whole journal, and so producers and dispatchers, for a moment: when the lock is not free at once, the next run tries
-- again. Records of the default partition go in portions of 20,000, each of which counts as a day.
--
-- Creating a day reads the default partition while it is locked, and writes to it wait. So while it has records a call creates
-- one day. While it is too large to be read in a moment that is tomorrow's alone, which may take a few seconds, once a day:
-- then no more records come to it after midnight, and it is empty after the retention. Beyond 2 GB there is none.
create function outbox_journal_keep() returns integer
language plpgsql security definer set search_path from current
set timezone = 'UTC' set datestyle = 'ISO' set lock_timeout = '50ms'
as $$
declare
    v_settings outbox_journal_settings;
    v_day      date;
    v_name     text;
    v_done     boolean;
    v_filled   boolean;
    v_since    timestamptz;
    v_removed  integer := 0;
begin
    select * into v_settings from outbox_journal_settings for update skip locked;
    if not found then
        return 0; -- another one is at it
    end if;
    v_since := v_settings.since;
    delete from outbox_journal_default
    where ctid = any (array(select ctid from outbox_journal_default where at < now() - v_settings.retention limit 20000));
    if found then
        v_since := greatest(v_since, now() - v_settings.retention);
        v_removed := 1;
    end if;
    for v_name, v_day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'outbox_journal'::regclass and c.relname ~ '^outbox_journal_[0-9]{8}$'
        order by 1
    loop
        exit when v_day + 1 > now() - v_settings.retention;
        begin
            v_done := pg_relation_size(to_regclass(v_name)) > 0;
            if v_done then
                execute format('truncate %I', v_name);
                v_since := greatest(v_since, (v_day + 1)::timestamptz);
            end if;
            begin
                execute format('drop table %I', v_name);
                v_done := true;
            exception when lock_not_available then null;
            end;
            v_removed := v_removed + v_done::integer;
        exception when lock_not_available then null; -- a reader holds it
        end;
    end loop;
    if v_since > v_settings.since then
        update outbox_journal_settings set since = v_since;
        insert into outbox_journal (at, lsn, xid, operation, login)
        values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), 'checkpoint', session_user);
    end if;
    if v_removed > 0 then
        return v_removed;
    end if;

    v_filled := exists (select from outbox_journal_default);
    for v_day in select d::date from generate_series(current_date, current_date + 7, interval '1 day') as d where v_settings.enabled loop
        v_name := 'outbox_journal_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass(v_name) is not null
            or exists (select from outbox_journal_default where at >= v_day and at < v_day + 1);
        continue when pg_relation_size('outbox_journal_default') > pg_size_bytes(case when v_day = current_date + 1 then '2 GB' else '256 MB' end);
        begin
            execute format('create table %I (like outbox_journal including all)', v_name);
            execute format('alter table outbox_journal attach partition %I for values from (%L) to (%L)', v_name, v_day, v_day + 1);
            exit when v_filled;
        exception when lock_not_available or check_violation then null; -- a record of the day has just come
        end;
    end loop;
    return 0;
end
$$;

-- outbox_journal_set turns the journal on or off, sets how long records are kept, and returns whether that changed
-- it. It is for the owner. Turning it on waits for the transactions that have written events: from then on
-- the journal has every change. Records are kept for their retention, also when it is turned off.
create function outbox_journal_set(p_enabled boolean, p_retention interval default '7 days') returns boolean
language plpgsql set search_path from current
as $$
declare
    v_edited  constant text[] := '{id,seq,created_at,key_hash,aggregate_sequence,size_bytes,tenant_id,namespace,topic,event_type,'
        'aggregate_type,aggregate_id,partition_key,dedupe_key,retry,headers,payload}';
    v_name    text;
    v_there   integer;
    v_changed boolean := false;
begin
    update outbox_journal_settings set retention = p_retention where retention <> p_retention;
    select count(*) into v_there from pg_trigger
    where tgrelid in ('outbox_events'::regclass, 'outbox_dead_letters'::regclass) and tgname like 'outbox\_journal\_%' and tgenabled in ('O', 'A');
    if v_there <> (case when p_enabled then 7 else 0 end) or (select enabled <> p_enabled from outbox_journal_settings) then
        v_changed := true;
        lock table outbox_events, outbox_dead_letters in access exclusive mode;
        foreach v_name in array '{added,changed,edited,removed,truncated}'::text[] loop
            execute format('drop trigger if exists %I on outbox_events', 'outbox_journal_' || v_name);
        end loop;
        drop trigger if exists outbox_journal_resolved on outbox_dead_letters;
        drop trigger if exists outbox_journal_forgotten on outbox_dead_letters;
        update outbox_journal_settings set enabled = p_enabled;
    end if;
    if v_changed and p_enabled then
        create trigger outbox_journal_added after insert on outbox_events
            referencing new table as rows_after for each statement execute function outbox_journal_added();
        create trigger outbox_journal_changed after update on outbox_events
            referencing old table as rows_before new table as rows_after for each statement execute function outbox_journal_changed();
        execute (select format('create trigger outbox_journal_edited after update of %s on outbox_events for each row
                when (row(%s) is distinct from row(%s)) execute function outbox_journal_edited(%s)',
                string_agg(name, ', '), string_agg('old.' || name, ', '), string_agg('new.' || name, ', '), string_agg(quote_literal(name), ', '))
            from unnest(v_edited) as name);
        create trigger outbox_journal_removed after delete on outbox_events
            referencing old table as rows_before for each statement execute function outbox_journal_removed();
        create trigger outbox_journal_truncated after truncate on outbox_events
            for each statement execute function outbox_journal_truncated();
        create trigger outbox_journal_resolved after update on outbox_dead_letters
            referencing old table as rows_before new table as rows_after for each statement execute function outbox_journal_resolved();
        create trigger outbox_journal_forgotten after delete on outbox_dead_letters
            referencing old table as rows_before for each statement execute function outbox_journal_resolved();
        update outbox_journal_settings set since = clock_timestamp();
    end if;
    for i in 1..10 loop
        exit when outbox_journal_keep() = 0;
    end loop;
    if v_changed and p_enabled then
        insert into outbox_journal (at, lsn, xid, operation, login)
        values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), 'checkpoint', session_user);
    end if;
    return v_changed;
end
$$;

revoke all on function outbox_journal_digest, outbox_journal_added, outbox_journal_changed, outbox_journal_edited, outbox_journal_removed, outbox_journal_truncated,
    outbox_journal_resolved, outbox_journal_keep, outbox_journal_set from public;
