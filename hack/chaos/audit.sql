-- The test's own witness: a row for each transition of an event, in the transaction that makes it. What
-- a crash of the database undoes, it undoes here too.
create schema chaos;

-- The fault "jump": how far this server's clock is ahead, and was before it jumped.
create table chaos.skew (ahead interval not null, before interval not null);
insert into chaos.skew values ('0', '0');

create table chaos.audit (
    n            bigint      not null generated always as identity primary key,
    tx           xid8        not null default pg_current_xact_id(),
    by_clock     timestamptz not null default clock_timestamp(), -- the server's
    began        timestamptz, -- of the transaction, by the right clock
    at           timestamptz, -- by the right clock
    id           uuid        not null,
    op           text        not null,
    seq          bigint,
    topic        text,
    key          text,
    original     uuid, -- of a copy
    type         text,
    tenant       uuid,
    max_attempts integer, -- of its own
    expires      timestamptz,
    old_status   text,
    old_attempts integer,
    old_lease    bigint,
    old_worker   uuid,
    old_until    timestamptz,
    status       text,
    attempts     integer,
    lease        bigint,
    worker       uuid,
    until        timestamptz,
    waits        boolean, -- it is not due yet
    reason       text,    -- of a row that is marked dead
    error        text
);

create function chaos.right_time() returns trigger language plpgsql security definer set search_path from current as $$
declare
    clock chaos.skew;
begin
    select * into strict clock from chaos.skew;
    new.at := new.by_clock - clock.ahead;
    new.began := now() - clock.ahead;
    if new.began > new.at then -- the clock was set back since, and may have been right
        new.began := least(new.at, now() - clock.before);
    end if;
    return new;
end
$$;

create trigger chaos_right_time before insert on chaos.audit
    for each row execute function chaos.right_time();

create function chaos.witness() returns trigger language plpgsql security definer set search_path from current as $$
begin
    if tg_op = 'INSERT' then
        insert into chaos.audit (id, op, seq, topic, key, original, type, tenant, max_attempts, expires, status, attempts, lease, worker, until, waits)
        values (new.id, tg_op, new.seq, new.topic, coalesce(new.partition_key, new.aggregate_id), (new.headers ->> 'originalid')::uuid, new.event_type, new.tenant_id, new.max_attempts, new.expires_at,
            new.status, new.attempts, new.lease, new.locked_by, new.locked_until, new.next_attempt_at > now());
    elsif tg_op = 'DELETE' then
        insert into chaos.audit (id, op, old_status, old_attempts, old_lease, old_worker, old_until)
        values (old.id, tg_op, old.status, old.attempts, old.lease, old.locked_by, old.locked_until);
    elsif (old.status, old.attempts, old.lease, old.locked_by) is distinct from (new.status, new.attempts, new.lease, new.locked_by) then
        insert into chaos.audit (id, op, old_status, old_attempts, old_lease, old_worker, old_until,
            status, attempts, lease, worker, until, waits, reason, error)
        values (new.id, tg_op, old.status, old.attempts, old.lease, old.locked_by, old.locked_until,
            new.status, new.attempts, new.lease, new.locked_by, new.locked_until, new.next_attempt_at > now(), new.dead_reason,
            case when new.last_error is distinct from old.last_error then left(new.last_error, 200) end);
    end if;
    return null;
end
$$;

create trigger chaos_witness after insert or update or delete on outbox.outbox_events
    for each row execute function chaos.witness();

-- The fault "choke" closes this gate for a moment: an exclusive advisory lock of that number. Claims that have
-- their snapshot wait there, but for those of a few small rows.
create function chaos.gate() returns trigger language plpgsql set search_path from current as $$
begin
    if current_query() like '-- Leases%' and current_query() not like '-- Leases a few%' then
        perform pg_advisory_xact_lock_shared(2026);
    end if;
    return null;
end
$$;

create trigger chaos_gate before update on outbox.outbox_events
    for each statement execute function chaos.gate();

-- The faults "limited" and "reject": each change of a row takes time, or the acks of some are refused.
create table chaos.hindered (how text not null);

-- The faults "veto" and "unclaimed": marking these events dead is refused, or claiming them, with that error.
create table chaos.vetoed (id uuid not null, error text not null);

create function chaos.hinder() returns trigger language plpgsql security definer set search_path from current as $$
declare
    refusal text;
begin
    if exists (select from chaos.hindered where how = 'limited') then
        perform pg_sleep(0.004);
    end if;
    if (tg_op = 'DELETE' or new.status = 'delivered') and hashtext(old.id::text) % 3 = 0
        and exists (select from chaos.hindered where how = 'reject') then
        raise exception 'chaos: not delivered here';
    end if;
    if tg_op = 'UPDATE' and old.status = 'pending' and new.status = 'processing' then
        select v.error into refusal from chaos.vetoed as v where v.id = old.id and v.error <> '';
        if found then
            raise exception 'chaos: not claimed here' using errcode = refusal;
        end if;
    end if;
    return coalesce(new, old);
end
$$;

create trigger chaos_hinder before update or delete on outbox.outbox_events
    for each row execute function chaos.hinder();

create function chaos.veto() returns trigger language plpgsql security definer set search_path from current as $$
begin
    if exists (select from chaos.vetoed where id = new.event_id) then
        raise exception 'chaos: no such dead letter here';
    end if;
    return new;
end
$$;

create trigger chaos_veto before insert on outbox.outbox_dead_letters
    for each row execute function chaos.veto();
