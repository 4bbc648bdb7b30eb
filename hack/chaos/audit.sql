-- The test's own witness: a row for each transition of an event, in the transaction that makes it. What
-- a crash of the database undoes, it undoes here too.
create schema chaos;

create table chaos.audit (
    n            bigint      not null generated always as identity primary key,
    began        timestamptz not null default now(),
    at           timestamptz not null default clock_timestamp(),
    id           uuid        not null,
    op           text        not null,
    seq          bigint,
    topic        text,
    key          text,
    old_status   text,
    old_attempts integer,
    old_worker   uuid,
    old_until    timestamptz,
    status       text,
    attempts     integer,
    worker       uuid,
    until        timestamptz,
    waits        boolean -- it is not due yet
);

create function chaos.witness() returns trigger language plpgsql security definer set search_path from current as $$
begin
    if tg_op = 'INSERT' then
        insert into chaos.audit (id, op, seq, topic, key, status, attempts, worker, until)
        values (new.id, tg_op, new.seq, new.topic, coalesce(new.partition_key, new.aggregate_id), new.status, new.attempts,
            new.locked_by, new.locked_until);
    elsif tg_op = 'DELETE' then
        insert into chaos.audit (id, op, old_status, old_attempts, old_worker, old_until)
        values (old.id, tg_op, old.status, old.attempts, old.locked_by, old.locked_until);
    elsif (old.status, old.attempts, old.locked_by) is distinct from (new.status, new.attempts, new.locked_by) then
        insert into chaos.audit (id, op, old_status, old_attempts, old_worker, old_until, status, attempts, worker, until, waits)
        values (new.id, tg_op, old.status, old.attempts, old.locked_by, old.locked_until, new.status, new.attempts,
            new.locked_by, new.locked_until, new.next_attempt_at > now());
    end if;
    return null;
end
$$;

create trigger chaos_witness after insert or update or delete on outbox.outbox_events
    for each row execute function chaos.witness();
