-- oldest-reader: 1
--
-- withdraw, by which a producer takes back an event that no worker has claimed, and hears truly whether it did.

-- A claim does not wait for the disk, so a row that was never claimed, for all that the server knows after a crash, a failover or a
-- restore, may have been claimed and sent. The fence is raised before the first claim after each of these. It says now which rows
-- were there then: those up to last_seq. Of this row nothing is known, but that an outbox which is new has no event.
do $$
begin
    execute format('alter table outbox_fence add column last_seq bigint not null default %s, add column raised_at timestamptz not null default now()',
        coalesce(pg_sequence_last_value('outbox_events_seq_seq'), 0));
end
$$;
alter table outbox_fence alter column last_seq set default coalesce(pg_sequence_last_value('outbox_events_seq_seq'), 0);

comment on column outbox_fence.last_seq is 'The last seq that was given before the fence was raised: of events up to it the server may have forgotten a claim.';
comment on column outbox_fence.raised_at is 'When the fence was raised.';

-- Whatever the old check lets in the new one does too: so it is not valid, and the table is not read.
alter table outbox_events drop constraint outbox_events_status;
alter table outbox_events add constraint outbox_events_status check (status in ('pending', 'processing', 'delivered', 'dead', 'withdrawn')
    and (status = 'dead') = (dead_reason is not null)
    and (status = 'processing') = (locked_by is not null and locked_until is not null)) not valid;
alter table outbox_dead_letters drop constraint outbox_dead_letters_resolution;
alter table outbox_dead_letters add constraint outbox_dead_letters_resolution check (resolution in ('replayed', 'discarded', 'expired', 'withdrawn')) not valid;

alter table outbox_sweeps add column withdrawn bigint not null default 0;
comment on column outbox_sweeps.withdrawn is 'Withdrawn rows that were removed, ever.';

-- outbox_withdrawable reports whether no delivery of an event can have begun: it has no lease and no attempt, also where an
-- adoption brought it, and the server has forgotten none. What was enqueued after the fence was raised has none that it could
-- forget, unless it was moved from another topic, which gives a new seq and an error that says so. Nor has what is due only since a
-- minute later, by a clock that was not ahead: as much as a clock may be wrong (CONTRACT C-3). It is inlined into the statements that
-- call it, so it must be stable.
create function outbox_withdrawable(e outbox_events, p_last_seq bigint, p_raised_at timestamptz) returns boolean
language sql stable
as $$
    select e.status in ('pending', 'dead') and e.lease = 0 and e.attempts = 0
        and (e.seq > p_last_seq and e.last_error is null or e.created_at <= p_raised_at and e.first_due_at > p_raised_at + interval '1 minute') is true
$$;

-- withdraw_batch takes back events in the caller's transaction, and returns for each, in their order, what became of it:
--
-- withdrawn: it was never sent, and never will be once the transaction commits. Until then claims pass it by, and a rollback leaves it as it
-- was. Also for one that is withdrawn already. too late: it was sent, is being sent or may have been, or it waits for another try; token is its newest
-- fencing token, or null where none is known. unknown: no event has the dedupe key or the id in its namespace and topic.
--
-- Each is named by its dedupe key or its id. The rows are locked in the order of their ids, so that two batches never wait for each other in a circle, and dead letters
-- before their events, as a replay does. It runs with the owner's rights, as enqueue, and keeps to outbox.require_data. The journal
-- hears by outbox.change that it is not a change by hand.
create function withdraw_batch(p_namespaces text[], p_topics text[], p_dedupe_keys text[] default null, p_ids uuid[] default null)
returns table (result text, token bigint, id uuid)
language plpgsql
security definer
set search_path from current
-- Each event and dead letter is looked up by its index, whatever the planner knows of the tables: so a resolution is compared by coalesce.
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_sort = on set jit = off
as $$
#variable_conflict use_column
declare
    v_wrong     bigint;
    v_ids       uuid[];
    v_open      uuid[];
    v_last_seq  bigint;
    v_raised_at timestamptz;
begin
    if pg_current_xact_id_if_assigned() is null and coalesce(current_setting('outbox.require_data', true), '') <> all ('{"",off,false,no,0}') then
        raise exception 'outbox: withdraw after the data, on the transaction''s own handle: nothing was written in this transaction before'
            using errcode = 'no_active_sql_transaction',
            hint = 'Write the data first (flush an ORM), and withdraw by the same connection, session, client or tx, before its commit. For a withdrawal without data: set local outbox.require_data = off.';
    end if;
    select n into v_wrong
    from unnest(p_namespaces, p_topics, p_dedupe_keys, p_ids) with ordinality as wanted (namespace, topic, dedupe_key, event_id, n)
    where coalesce(namespace, '') = '' or coalesce(topic, '') = '' or num_nonnulls(nullif(dedupe_key, ''), event_id) <> 1
    order by n limit 1;
    if found then
        raise exception 'outbox: event % of the withdrawal is not named by its namespace, its topic, and one of dedupe key and id', v_wrong
            using errcode = 'invalid_parameter_value', hint = 'Give a namespace and a topic for each event, and either its dedupe key or its id.';
    end if;

    select array_agg(e.id order by n) into v_ids -- null for an event that is not there
    from unnest(p_namespaces, p_topics, p_dedupe_keys, p_ids) with ordinality as wanted (namespace, topic, dedupe_key, event_id, n)
    left join lateral (
        select e.id from outbox_events as e where e.namespace = wanted.namespace and e.topic = wanted.topic and e.dedupe_key = nullif(wanted.dedupe_key, '')
        union all
        select e.id from outbox_events as e where e.id = wanted.event_id and e.namespace = wanted.namespace and e.topic = wanted.topic
    ) as e on true;

    -- While the fence is down nothing is claimed, and all that is due may have been before.
    select last_seq, raised_at into v_last_seq, v_raised_at from outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin;
    if not found then
        v_last_seq := 9223372036854775807;
        v_raised_at := clock_timestamp();
    end if;

    -- A row that is claimed while this waits for it stays locked, although it is not taken, and its worker would wait for the caller's
    -- commit. So all of them are let go then, and the others are tried again.
    loop
        select array_agg(e.id) into v_open from outbox_events as e where e.id = any (v_ids) and outbox_withdrawable(e, v_last_seq, v_raised_at);
        exit when v_open is null;
        begin
            perform from (select from outbox_dead_letters where event_id = any (v_open) and coalesce(resolution, '') = '' order by outbox_dead_letters.id for update) as locked;
            perform from (select from outbox_events as e where e.id = any (v_open) order by e.id for update) as locked;
            perform set_config('outbox.change', 'withdraw', true); -- not of the function: that takes a superuser
            update outbox_events as e set status = 'withdrawn', dead_reason = null, updated_at = now()
                where e.id = any (v_open) and outbox_withdrawable(e, v_last_seq, v_raised_at);
            get diagnostics v_wrong = row_count;
            perform set_config('outbox.change', '', true);
            if v_wrong < cardinality(v_open) then
                raise sqlstate 'OB046';
            end if;
            update outbox_dead_letters
                set resolution = 'withdrawn', resolved_at = now(), resolved_by = session_user, resolution_reason = 'its producer withdrew the event'
                where event_id = any (v_open) and coalesce(resolution, '') = '';
            exit;
        exception when sqlstate 'OB046' then null;
        end;
    end loop;

    return query
    select case when e.id is null then 'unknown' when e.status = 'withdrawn' then 'withdrawn' else 'too late' end, nullif(e.lease, 0), e.id
    from unnest(v_ids) with ordinality as wanted (event_id, n)
    left join outbox_events as e on e.id = wanted.event_id
    order by n;
end
$$;

-- withdraw is withdraw_batch for one event.
create function withdraw(p_namespace text, p_topic text, p_dedupe_key text default null, p_id uuid default null,
    out result text, out token bigint, out id uuid)
language sql security definer
begin atomic
    select b.result, b.token, b.id from withdraw_batch(array[p_namespace], array[p_topic], array[p_dedupe_key], array[p_id]) as b;
end;

-- The journal: a withdrawal is a change of withdraw_batch alone.
create or replace function outbox_journal_changed() returns trigger
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
            when a.status = 'withdrawn' and current_setting('outbox.change', true) = 'withdraw' then 'withdraw'
            else 'change'
        end,
        b.status, a.status, a.namespace, a.topic, session_user, a.dead_reason
    from rows_after as a join rows_before as b using (id);
    return null;
end
$$;
comment on column outbox_journal.operation is 'insert, claim, ack, nack, dead, release, extend, replay, withdraw, delete (by retention); resolve, reopen and forget, of its dead letter; edit, of what never changes, and change, for what no engine does; truncate; checkpoint, where the journal begins.';

-- Replays: an event that was withdrawn after it was put back is gone, and no outcome.
create or replace function outbox_replay_observe(p_id uuid, p_most integer default null) returns boolean
language plpgsql security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_sort = on set jit = off
as $$
declare
    v_replay outbox_replays;
    v_kept   interval; -- how long a delivered row stays, at least
    v_new    bigint;
    v_least  integer;
    v_failed integer;
begin
    select * into v_replay from outbox_replays where id = p_id for update;
    if v_replay.id is null or v_replay.pending + v_replay.failing = 0 then
        return false;
    end if;
    select min(delivered_after) into v_kept from outbox_sweeps where namespace in ('', v_replay.namespace);

    with seen as materialized (
        select dead_letter.id, coalesce(dead_letter.seq, 0) as seq, dead_letter.replay_state as was, coalesce(later.error, event.last_error) as error, outcome.is_now,
            coalesce(event.status = 'withdrawn', false) as withdrawn
        from outbox_dead_letters as dead_letter
        left join outbox_events as event on event.id = dead_letter.event_id
        left join lateral (
            select id, error from outbox_dead_letters as later
            where later.event_id = dead_letter.event_id and later.id > dead_letter.id order by event_id, id limit 1
        ) as later on true
        cross join lateral (
            select case
                when later.id is not null or event.status = 'dead' then 'dead_again'
                when event.status = 'delivered' then 'delivered'
                when event.status = 'withdrawn' then 'gone'
                when event.id is null and dead_letter.resolved_at <= now() - v_kept then 'delivered'
                when event.id is null then 'gone'
                when event.last_error is not null then 'failing'
                else 'requeued'
            end as is_now
        ) as outcome
        where dead_letter.replay_id = p_id and dead_letter.replay_state in ('requeued', 'failing') and outcome.is_now <> dead_letter.replay_state
        limit p_most -- without an order, so that it reads no further than that
    ),
    noted as (
        update outbox_dead_letters as dead_letter set replay_state = seen.is_now
        from seen where dead_letter.id = seen.id
        returning seen.seq, seen.was, seen.is_now, seen.error, seen.withdrawn
    ),
    counted as (
        select count(*) as n, count(*) filter (where was = 'requeued') as first,
            count(*) filter (where is_now = 'failing') - count(*) filter (where was = 'failing') as failing,
            count(*) filter (where is_now = 'delivered') as delivered, count(*) filter (where is_now = 'dead_again') as dead_again,
            count(*) filter (where is_now = 'gone') as gone,
            coalesce(string_agg(case is_now when 'delivered' then '+' else '-' end, '' order by seq) filter (where was = 'requeued' and not withdrawn), '') as outcomes,
            (array_agg(error order by seq desc) filter (where is_now in ('failing', 'dead_again') and error is not null))[1] as error
        from noted
    )
    update outbox_replays as replay
    set pending = pending - counted.first, failing = replay.failing + counted.failing, delivered = replay.delivered + counted.delivered,
        dead_again = replay.dead_again + counted.dead_again, gone = replay.gone + counted.gone,
        outcomes = right(replay.outcomes || counted.outcomes, 100), last_error = coalesce(left(counted.error, 1000), replay.last_error)
    from counted
    where replay.id = p_id
    returning counted.n into v_new;

    select * into v_replay from outbox_replays where id = p_id;
    v_failed := length(replace(v_replay.outcomes, '+', ''));
    v_least := case when v_replay.canary between 1 and 100 then v_replay.canary else 10 end;
    if v_replay.waiting > 0 and length(v_replay.outcomes) >= v_least and v_failed * 100 >= v_replay.abort_at * length(v_replay.outcomes) then
        perform outbox_replay_stop(p_id, format('%s of the newest %s outcomes are failures, which is %s %% or more', v_failed, length(v_replay.outcomes), v_replay.abort_at));
    elsif v_replay.waiting + v_replay.pending + v_replay.failing = 0 then
        update outbox_replays set finished_at = now() where id = p_id and finished_at is null;
    end if;
    return v_new > 0;
end
$$;
comment on column outbox_replays.gone is 'How many have no row any more that was delivered or could be put back, or were withdrawn.';

revoke all on function outbox_withdrawable, withdraw_batch, withdraw from public;
