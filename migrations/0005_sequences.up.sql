-- oldest-reader: 1
--
-- What keeps the numbers of claims rising, which are the fencing tokens, where the database has forgotten some.
--
-- A claim does not wait for the disk, and a standby may lag: a server that recovers, or takes over, may not know the last
-- numbers that were given. So the fence is down then. No claim is made until outbox_fence_raise has set the sequence above all
-- that any server can have given. That costs one look for each claim and nothing for each event.

-- The fence is up while this table has the row of now. PostgreSQL empties an unlogged table whenever it recovers: after a crash of
-- the server or of one session, at a promotion, and where a copy is restored. A server that was stopped in order keeps the
-- row, and so does a copy of its files or a dump: so the row names the run of the server, and the transaction that inserted it.
create unlogged table outbox_fence (
    server_started timestamptz not null,
    inserted_by    xid         not null,

    constraint outbox_fence_pkey primary key (server_started)
);

comment on table outbox_fence is 'Claims are made while it has the row of this run of the server: see outbox_fence_raise.';

-- The clusters of PostgreSQL that this outbox has been in. A number has three parts: the epoch, which rises with each
-- promotion and each move to another cluster, 30 bits of seconds and 15 bits. All together are below 2^53, which is
-- exact in JavaScript. The epoch is the cluster's timeline plus a constant.
create table outbox_clusters (
    system bigint  not null,
    epochs integer not null,

    constraint outbox_clusters_pkey primary key (system)
);

comment on table outbox_clusters is 'One row per cluster of PostgreSQL that this outbox has been in.';
comment on column outbox_clusters.system is 'The system identifier of the cluster.';
comment on column outbox_clusters.epochs is 'What is added to the timeline of the cluster for the epoch of the leases given there.';

-- outbox_timeline is that of the server, or 0 where a service hides it: then the seconds alone raise the numbers.
create function outbox_timeline() returns integer
language plpgsql
as $$
begin
    return ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
exception when others then
    return 0;
end
$$;

-- outbox_fence_down is what a claim ends with while the fence is down.
create function outbox_fence_down() returns boolean
language plpgsql
as $$
begin
    raise exception 'outbox: the server has recovered or started since the last claim, so the leases must be raised first'
        using errcode = '57OBX', hint = 'Dispatchers do it: select outbox_fence_raise().';
end
$$;

-- outbox_fence_raise sets outbox_leases above every number that was given out before, here or on any server with the same past,
-- and puts the fence up. It does nothing while the fence is up.
--
-- The number is the greater of two. The last one that is known, and 2^15: what no commit has waited for is lost with a
-- crash. And the epoch with the time: that is above a primary that lives on with another timeline, also if that is started
-- again, and above all that was given at less than 2^15 claims a second.
--
-- It reads no event, since a claim waits for it, however many there are. Where rows were copied without their sequence,
-- outbox_moved reads them.
create function outbox_fence_raise() returns void
language plpgsql
security definer
set search_path from current
as $$
declare
    v_timeline integer := outbox_timeline();
    v_system   bigint  := (select system_identifier from pg_control_system());
    v_epochs   bigint;
    v_last     bigint;
begin
    lock table outbox_fence in exclusive mode; -- claims read on
    if exists (select from outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin) then
        return;
    end if;
    -- The numbers are on this server's disk before a claim sees the row. A standby need not have them.
    perform set_config('synchronous_commit', 'local', true);

    select last_value into v_last from outbox_leases;
    select epochs into v_epochs from outbox_clusters where system = v_system;
    if v_epochs is null or v_timeline + v_epochs < v_last >> 45 then
        v_epochs := (v_last >> 45) + 1 - v_timeline;
        insert into outbox_clusters values (v_system, v_epochs) on conflict (system) do update set epochs = excluded.epochs;
    end if;
    perform setval('outbox_leases', greatest(v_last + (1 << 15),
        (least(v_timeline + v_epochs, 255) << 45) + (extract(epoch from clock_timestamp() - '2026-01-01Z')::bigint << 15)));

    delete from outbox_fence;
    insert into outbox_fence values (pg_postmaster_start_time(), pg_current_xact_id()::xid);
end
$$;

revoke all on function outbox_fence_raise from public;

-- outbox_moved is for the owner, after the tables were copied to another server without their sequences, as logical
-- replication copies them, before producers and dispatchers use it: it sets the three sequences above what the
-- tables hold. Where the server is of another major version, whose hashes may differ, it computes the hashes again. It may run again,
-- and while they use it: a sequence that is not behind is left alone.
create function outbox_moved() returns void
language plpgsql
set search_path from current
as $$
declare
    v_seq   bigint;
    v_lease bigint;
    v_id    bigint := (select max(id) from outbox_dead_letters);
begin
    select max(seq), max(lease) into v_seq, v_lease from outbox_events;
    perform setval('outbox_events_seq_seq', v_seq) from outbox_events_seq_seq where last_value + is_called::integer <= v_seq;
    perform setval('outbox_leases', v_lease) from outbox_leases where last_value + is_called::integer <= v_lease;
    perform setval('outbox_dead_letters_id_seq', v_id) from outbox_dead_letters_id_seq where last_value + is_called::integer <= v_id;
    delete from outbox_clusters where system = (select system_identifier from pg_control_system());
    delete from outbox_fence;
    perform outbox_fence_raise();

    update outbox_events set key_hash = outbox_key_hash(namespace, topic, partition_key, aggregate_id)
        where status <> 'delivered' and key_hash is distinct from outbox_key_hash(namespace, topic, partition_key, aggregate_id);
    update outbox_dead_letters as d set key_hash = e.key_hash
        from outbox_events as e where e.id = d.event_id and d.resolution is null and d.key_hash is distinct from e.key_hash;
end
$$;

revoke all on function outbox_moved from public;

-- outbox_sequences_behind reports whether the tables hold numbers that their sequences have not given yet: outbox_moved was
-- forgotten. It reads two indexes at their ends. Rows that are delivered do not count: nothing claims them again.
create function outbox_sequences_behind() returns boolean
language sql
stable
security definer
set search_path from current
as $$
    select coalesce((select max(seq) from outbox_events where coalesce(live, false)) >= (select last_value + is_called::integer from outbox_events_seq_seq)
        or (select max(id) from outbox_dead_letters) >= (select last_value + is_called::integer from outbox_dead_letters_id_seq), false)
$$;

revoke all on function outbox_timeline, outbox_fence_down, outbox_sequences_behind from public;

-- outbox_adoption_rows counts what is wrong with the tables that are adopted and live: their rows that are refused, that have no
-- note, and that are still open. To count may read a whole table: each is counted again when five minutes are over, and a hundred times
-- the time that it took. -1 is a table that cannot be counted, as "dispatcher adopt status" says. The namespace is empty where each
-- row has its own.
create function outbox_adoption_rows() returns table (adoption text, namespace text, state text, count bigint)
language plpgsql
security definer
set search_path from current
set lock_timeout = '1s'
set enable_seqscan = on set enable_bitmapscan = on set enable_sort = on -- whatever the caller has set for its own plans
as $$
declare
    a       record;
    v_rows  record;
    v_began timestamptz;
begin
    if to_regclass('outbox_adoptions') is null then -- "dispatcher adopt shadow" makes it
        return;
    end if;
    for a in execute 'select name, look from outbox_adoptions where state = ''Live'' and look_after < clock_timestamp()'
            || case current_setting('transaction_read_only') when 'off' then ' for update skip locked' else ' and false' end loop
        v_began := clock_timestamp();
        begin
            execute a.look into v_rows;
        exception
            when lock_not_available then
                continue; -- another statement changes the table
            when query_canceled or others then
                select (-1)::bigint as missing, (-1)::bigint as waiting into v_rows;
        end;
        execute 'update outbox_adoptions set missing = $2, waiting = $3, look_after = clock_timestamp() + greatest(interval ''5 minutes'', 100 * (clock_timestamp() - $4))
            where name = $1' using a.name, v_rows.missing, v_rows.waiting, v_began;
    end loop;
    return query execute 'select name, a.namespace, kind, rows from outbox_adoptions as a cross join lateral (values (''refused'', (select count(*) from outbox_adopted
        where adoption = a.name and refused is not null)), (''missing'', missing), (''waiting'', waiting)) as of (kind, rows) where a.state = ''Live'' order by 1, 3';
end
$$;

revoke all on function outbox_adoption_rows from public;

-- Leases of a new outbox begin at 1.
insert into outbox_clusters select system_identifier, -outbox_timeline() from pg_control_system();
insert into outbox_fence values (pg_postmaster_start_time(), pg_current_xact_id()::xid);
