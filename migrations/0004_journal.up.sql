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
    reason          text
) partition by range (at);

comment on table outbox_journal is 'One record per change of an event''s row, while the journal is on. Never a payload.';
comment on column outbox_journal.at is 'When, on the database''s clock, to the statement.';
comment on column outbox_journal.lsn is 'The position of the server''s WAL then. It orders the records of an event.';
comment on column outbox_journal.xid is 'The transaction.';
comment on column outbox_journal.event_id is 'The event. Null for checkpoint and truncate, which are about all of them.';
comment on column outbox_journal.lease is 'The lease number, which is the fencing token, after the change.';
comment on column outbox_journal.worker is 'Who holds the row after it, else who held it before.';
comment on column outbox_journal.operation is 'insert, claim, ack, nack, dead, release, extend, replay, discard, delete; change for what no engine does; truncate; checkpoint, where the journal begins.';
comment on column outbox_journal.before is 'The status before. Null: there was no row.';
comment on column outbox_journal.after is 'The status after. Null: the row is gone.';
comment on column outbox_journal.login is 'The session''s user.';
comment on column outbox_journal.reason is 'Why it is dead.';

create index outbox_journal_event on outbox_journal (event_id);

create table outbox_journal_default partition of outbox_journal default;

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

-- The triggers' functions run with the owner's rights: no other login may write the journal. One for each kind of
-- statement, since they see its rows as tables: a batch is one insert.
create function outbox_journal_added() returns trigger
language plpgsql security definer set search_path from current
as $$
declare
    v_at  timestamptz := clock_timestamp();
    v_lsn pg_lsn      := pg_current_wal_insert_lsn();
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, attempts, worker, operation, after, namespace, topic, login, reason)
    select v_at, v_lsn, pg_current_xact_id(), id, seq, lease, attempts, locked_by, 'insert', status, namespace, topic, session_user, dead_reason
    from rows_after;
    return null;
end
$$;

-- A hash join, whatever the number of rows was when the plan was made.
create function outbox_journal_changed() returns trigger
language plpgsql security definer set search_path from current set enable_nestloop = off
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

-- A row that is removed while it is leased is delivered, where rows are not kept.
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
        case status when 'processing' then 'ack' else 'delete' end, status, namespace, topic, session_user
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

-- A discard changes the dead letter, and leaves the row as it is.
create function outbox_journal_resolved() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
    insert into outbox_journal (at, lsn, xid, event_id, seq, lease, lease_before, attempts, attempts_before, operation, before, after,
        namespace, topic, login, reason)
    select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), e.id, e.seq, e.lease, e.lease, e.attempts, e.attempts,
        'discard', e.status, e.status, e.namespace, e.topic, session_user, e.dead_reason
    from rows_after as a join rows_before as b using (id) join outbox_events as e on e.id = a.event_id
    where b.resolution is null and a.resolution = 'discarded';
    return null;
end
$$;

-- outbox_journal_keep creates the next days, and removes those that are older than the retention. It returns how many it
-- removed. The dispatchers' retention calls it. It has no argument, so that its caller can remove nothing else.
--
-- A day is emptied first, which locks that day alone: nothing writes to it any more. Dropping the table locks the
-- whole journal, and so producers and dispatchers, for a moment: when the lock is not free at once, the next run tries
-- again.
create function outbox_journal_keep() returns integer
language plpgsql security definer set search_path from current
set timezone = 'UTC' set datestyle = 'ISO' set lock_timeout = '50ms'
as $$
declare
    v_settings outbox_journal_settings;
    v_day      date;
    v_name     text;
    v_since    timestamptz;
    v_removed  integer := 0;
begin
    select * into v_settings from outbox_journal_settings for update skip locked;
    if not found then
        return 0; -- another one is at it
    end if;
    for v_day in select d::date from generate_series(current_date, current_date + 7, interval '1 day') as d where v_settings.enabled loop
        v_name := 'outbox_journal_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass(v_name) is not null
            or exists (select from outbox_journal_default where at >= v_day and at < v_day + 1);
        begin
            execute format('create table %I (like outbox_journal including all)', v_name);
            execute format('alter table outbox_journal attach partition %I for values from (%L) to (%L)', v_name, v_day, v_day + 1);
        exception when lock_not_available then null;
        end;
    end loop;

    v_since := v_settings.since;
    for v_name, v_day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'outbox_journal'::regclass and c.relname ~ '^outbox_journal_[0-9]{8}$'
        order by 1
    loop
        exit when v_day + 1 > now() - v_settings.retention;
        begin
            if pg_relation_size(to_regclass(v_name)) > 0 then
                execute format('truncate %I', v_name);
                v_removed := v_removed + 1;
                v_since := greatest(v_since, (v_day + 1)::timestamptz);
            end if;
            begin
                execute format('drop table %I', v_name);
            exception when lock_not_available then null;
            end;
        exception when lock_not_available then null; -- a reader holds it
        end;
    end loop;
    if exists (select from outbox_journal_default where at < now() - v_settings.retention) then
        delete from outbox_journal_default where at < now() - v_settings.retention;
        v_since := greatest(v_since, now() - v_settings.retention);
        v_removed := v_removed + 1;
    end if;
    if v_since > v_settings.since then
        update outbox_journal_settings set since = v_since;
        insert into outbox_journal (at, lsn, xid, operation, login)
        values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), 'checkpoint', session_user);
    end if;
    return v_removed;
end
$$;

-- outbox_journal_set turns the journal on or off, sets how long records are kept, and returns whether that changed
-- it. It is for the owner. Turning it on waits for the transactions that have written events: from then on
-- the journal has every change. Records are kept for their retention, also when it is turned off.
create function outbox_journal_set(p_enabled boolean, p_retention interval default '7 days') returns boolean
language plpgsql set search_path from current
as $$
declare
    v_name    text;
    v_there   integer;
    v_changed boolean := false;
begin
    update outbox_journal_settings set retention = p_retention where retention <> p_retention;
    select count(*) into v_there from pg_trigger
    where tgrelid in ('outbox_events'::regclass, 'outbox_dead_letters'::regclass) and tgname like 'outbox\_journal\_%' and tgenabled in ('O', 'A');
    if v_there <> (case when p_enabled then 5 else 0 end) or (select enabled <> p_enabled from outbox_journal_settings) then
        v_changed := true;
        lock table outbox_events, outbox_dead_letters in access exclusive mode;
        foreach v_name in array '{added,changed,removed,truncated}'::text[] loop
            execute format('drop trigger if exists %I on outbox_events', 'outbox_journal_' || v_name);
        end loop;
        drop trigger if exists outbox_journal_resolved on outbox_dead_letters;
        update outbox_journal_settings set enabled = p_enabled;
    end if;
    if v_changed and p_enabled then
        create trigger outbox_journal_added after insert on outbox_events
            referencing new table as rows_after for each statement execute function outbox_journal_added();
        create trigger outbox_journal_changed after update on outbox_events
            referencing old table as rows_before new table as rows_after for each statement execute function outbox_journal_changed();
        create trigger outbox_journal_removed after delete on outbox_events
            referencing old table as rows_before for each statement execute function outbox_journal_removed();
        create trigger outbox_journal_truncated after truncate on outbox_events
            for each statement execute function outbox_journal_truncated();
        create trigger outbox_journal_resolved after update on outbox_dead_letters
            referencing old table as rows_before new table as rows_after for each statement execute function outbox_journal_resolved();
        update outbox_journal_settings set since = clock_timestamp();
    end if;
    perform outbox_journal_keep();
    if v_changed and p_enabled then
        insert into outbox_journal (at, lsn, xid, operation, login)
        values (clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), 'checkpoint', session_user);
    end if;
    return v_changed;
end
$$;

revoke all on function outbox_journal_added, outbox_journal_changed, outbox_journal_removed, outbox_journal_truncated,
    outbox_journal_resolved, outbox_journal_keep, outbox_journal_set from public;
