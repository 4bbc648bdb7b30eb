-- oldest-reader: 1
--
-- Operations on dead letters: their table, and the functions by which alone a replay login changes events and dead letters.

-- One row per operation on dead letters. A replay claims its dead letters when it begins: two operations never have the same
-- one. A claim holds while the replay is neither stopped nor finished and a process runs it; a minute after that another
-- operation may claim what still waits. A discard or a reopen is done when it has begun. Only the functions below write
-- here.
create table outbox_replays (
    id             uuid        not null,
    namespace      text        not null,
    action         text        not null,
    reason         text        not null,
    requested_by   text        not null,
    login          text        not null,
    filter         jsonb       not null,
    rate           integer     not null,
    canary         integer     not null,
    abort_at       integer     not null,
    began_at       timestamptz not null default now(),
    paced_at       timestamptz,
    seen_at        timestamptz not null default now(),
    finished_at    timestamptz,
    stopped_reason text,
    last_error     text,
    outcomes       text        not null default '',
    topics         text[]      not null default '{}',
    requeued       bigint      not null default 0,
    waiting        bigint      not null default 0,
    pending        bigint      not null default 0,
    failing        bigint      not null default 0,
    delivered      bigint      not null default 0,
    dead_again     bigint      not null default 0,
    gone           bigint      not null default 0,
    not_dead       bigint      not null default 0,
    claimed        bigint      not null default 0,
    stopped        bigint      not null default 0,
    discarded      bigint      not null default 0,
    reopened       bigint      not null default 0,

    constraint outbox_replays_pkey primary key (id),
    constraint outbox_replays_action check (action in ('replay', 'discard', 'reopen')),
    constraint outbox_replays_bounds check (rate between 1 and 100000 and canary between 0 and 10000 and abort_at between 1 and 100)
);

comment on table outbox_replays is 'One row per operation on dead letters: a replay, a discard or a reopen. The counts from waiting on add up to the dead letters that it chose.';
comment on column outbox_replays.reason is 'The reason, in the words of who requested it.';
comment on column outbox_replays.requested_by is 'Who requested it, as the program says that began it.';
comment on column outbox_replays.login is 'The login that began it, as the database knows it.';
comment on column outbox_replays.filter is 'What was requested: the topics, and the members of the filter.';
comment on column outbox_replays.rate is 'The most events a second.';
comment on column outbox_replays.canary is 'How many events go first, and alone, until their outcome is known. 0: none.';
comment on column outbox_replays.abort_at is 'The percentage of failures among the newest 100 outcomes, at which it stops.';
comment on column outbox_replays.paced_at is 'When the first one went back after the canary: since then it goes at its own speed. Null: not yet.';
comment on column outbox_replays.seen_at is 'When a process last ran it. After a minute others may claim what waits, and it holds up none.';
comment on column outbox_replays.finished_at is 'When the last outcome was known.';
comment on column outbox_replays.stopped_reason is 'Why what waited was given up: by whom, or that too many fail.';
comment on column outbox_replays.last_error is 'The newest error of an event that was put back.';
comment on column outbox_replays.outcomes is 'The newest 100 outcomes: + delivered, - failed. An event whose first attempt failed has failed.';
comment on column outbox_replays.topics is 'The topics of its dead letters that have a key.';
comment on column outbox_replays.requeued is 'How many events were put back, ever.';
comment on column outbox_replays.waiting is 'How many wait for their turn.';
comment on column outbox_replays.pending is 'How many were put back, and have no outcome yet.';
comment on column outbox_replays.failing is 'How many were put back, have failed, and are tried again.';
comment on column outbox_replays.delivered is 'How many were put back, and are delivered.';
comment on column outbox_replays.dead_again is 'How many were put back, and are dead again.';
comment on column outbox_replays.gone is 'How many have no row any more that was delivered or could be put back.';
comment on column outbox_replays.not_dead is 'How many were changed by hand: their event was not dead, or the dead letter not open, at their turn.';
comment on column outbox_replays.claimed is 'How many another operation has claimed or handled, before it began or while no process ran it.';
comment on column outbox_replays.stopped is 'How many waited when it was stopped; they stay open.';
comment on column outbox_replays.discarded is 'How many were marked as handled.';
comment on column outbox_replays.reopened is 'How many discarded dead letters were opened again.';

-- The open operations: few. Those that finished are looked up by id.
create index outbox_replays_open on outbox_replays (namespace) where finished_at is null;

-- Whether a replay that runs has claimed a dead letter. One that was seen more than a minute from now was seen by a clock that was
-- ahead. A function, so that it is written once.
create function outbox_replay_claims(p_replay uuid, p_state text) returns boolean
language sql stable strict
return p_state = 'waiting' and exists (
    select from outbox_replays
    where id = p_replay and finished_at is null and stopped_reason is null and seen_at between now() - interval '1 minute' and now() + interval '1 minute'
);

-- outbox_replay_begin begins an operation on some dead letters, and returns false when its id is there already. It records the
-- login of the session, and who requested it. Of the dead letters it takes those of the namespace that no operation has claimed or
-- resolved: a replay claims them, a discard resolves them, a reopen opens them again if their event is still dead and has
-- no later dead letter. A replay login changes events and dead letters only by this and the three functions that follow.
--
-- One begins at a time, so that each sees the claims of those before it.
create function outbox_replay_begin(p_id uuid, p_namespace text, p_action text, p_reason text, p_requested_by text, p_filter jsonb,
    p_rate integer, p_canary integer, p_abort_at integer, p_dead_letters bigint[]) returns boolean
language plpgsql security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_done   bigint;
    v_topics text[];
begin
    lock table outbox_replays in share update exclusive mode;
    insert into outbox_replays (id, namespace, action, reason, requested_by, login, filter, rate, canary, abort_at)
    values (p_id, p_namespace, p_action, p_reason, p_requested_by, session_user, p_filter, p_rate, p_canary, p_abort_at)
    on conflict (id) do nothing;
    if not found then
        return false;
    end if;
    with done as (
        update outbox_dead_letters as dead_letter
        set replay_id = p_id,
            replay_state = case p_action when 'replay' then 'waiting' end,
            resolution = case p_action when 'discard' then 'discarded' end,
            resolved_at = case p_action when 'discard' then now() end,
            resolved_by = case p_action when 'discard' then p_requested_by end,
            resolution_reason = case p_action when 'discard' then p_reason end
        where dead_letter.id = any (p_dead_letters) and dead_letter.namespace = p_namespace
          and case p_action
                  when 'reopen' then dead_letter.resolution = 'discarded'
                      and exists (select from outbox_events where id = dead_letter.event_id and status = 'dead')
                      and dead_letter.id = (select max(later.id) from outbox_dead_letters as later where later.event_id = dead_letter.event_id)
                  else dead_letter.resolution is null
              end
          and not coalesce(outbox_replay_claims(dead_letter.replay_id, dead_letter.replay_state), false)
        returning dead_letter.topic, dead_letter.key_hash
    )
    select count(*), coalesce(array_agg(distinct topic) filter (where key_hash is not null), '{}') into v_done, v_topics from done;
    update outbox_replays
    set topics = v_topics, claimed = coalesce(cardinality(p_dead_letters), 0) - v_done,
        waiting = case p_action when 'replay' then v_done else 0 end,
        discarded = case p_action when 'discard' then v_done else 0 end,
        reopened = case p_action when 'reopen' then v_done else 0 end,
        finished_at = case when p_action <> 'replay' or v_done = 0 then now() end
    where id = p_id;
    return true;
end
$$;

-- outbox_replay_step puts back the next dead letters of a replay, at most p_limit, and returns how many had their turn. 0: none
-- may go now. They go in the order of insertion, which the dispatchers keep within a key; and where two open replays have
-- keys of the same topic, the one whose next dead letter is later waits for the other.
--
-- The brake: the canary goes alone until each of its events has an outcome, and never more than 5 seconds of the rate are
-- without one.
--
-- A row that goes back has its whole retry budget again. Its lease stays, so that the fencing token keeps rising. Its old
-- failures are in the dead letter.
create function outbox_replay_step(p_id uuid, p_limit integer) returns integer
language plpgsql security definer set search_path from current
-- Each dead letter and each row is looked up by an index, whatever the planner knows of the tables.
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_sort = on set jit = off
as $$
declare
    v_replay  outbox_replays;
    v_limit   bigint;
    v_before  bigint := 9223372036854775807; -- the first one that another replay has left
    v_dead_letters bigint[];
    v_events  uuid[];
    v_moved   bigint;
    v_gone    bigint := 0;
    v_changed bigint := 0;
begin
    select * into v_replay from outbox_replays where id = p_id for update;
    if v_replay.waiting is null or v_replay.waiting = 0 then
        return 0;
    end if;
    update outbox_replays set seen_at = now() where id = p_id and seen_at not between now() - interval '5 seconds' and now() + interval '1 minute';
    v_limit := least(p_limit, 5 * v_replay.rate - v_replay.pending);
    if v_replay.requeued < v_replay.canary then
        v_limit := least(v_limit, v_replay.canary - v_replay.requeued);
    elsif v_replay.requeued = v_replay.canary and v_replay.pending > 0 then
        return 0;
    end if;
    if v_limit <= 0 then
        return 0;
    end if;
    if v_replay.topics <> '{}' then
        select coalesce(min(first.seq), v_before) into v_before
        from outbox_replays as other
        cross join lateral (
            select coalesce(seq, 0) as seq from outbox_dead_letters
            where replay_id = other.id and replay_state = 'waiting'
            order by coalesce(seq, 0), id limit 1
        ) as first
        where other.namespace = v_replay.namespace and other.finished_at is null and other.stopped_reason is null
          and other.id <> p_id and other.topics && v_replay.topics
          and other.seen_at between now() - interval '1 minute' and now() + interval '1 minute';
    end if;

    select array_agg(id order by id), array_agg(event_id order by event_id) into v_dead_letters, v_events
    from (
        select id, event_id from outbox_dead_letters
        where replay_id = p_id and replay_state = 'waiting' and coalesce(seq, 0) <= v_before
        order by coalesce(seq, 0), id limit v_limit
    ) as next;
    if v_dead_letters is null then
        if v_before = 9223372036854775807 then -- others have claimed the rest, when no process ran it
            update outbox_replays
            set claimed = claimed + waiting, waiting = 0, finished_at = case when pending + failing = 0 then now() end where id = p_id;
        end if;
        return 0;
    end if;
    with dead_letters as materialized (
        select dead_letter.id, dead_letter.event_id from outbox_dead_letters as dead_letter
        where dead_letter.id = any (v_dead_letters) and coalesce(dead_letter.replay_id, p_id) = p_id and coalesce(dead_letter.resolution, '') = ''
          and dead_letter.id = (select max(later.id) from outbox_dead_letters as later where later.event_id = dead_letter.event_id)
        for update
    ),
    back as (
        update outbox_events as event
        set status = 'pending', dead_reason = null, last_error = null, failures = null, fault_since = null, attempts = 0,
            first_due_at = now(), next_attempt_at = now(), updated_at = now()
        from dead_letters where event.id = dead_letters.event_id and event.status = 'dead'
        returning dead_letters.id
    ),
    moved as (
        update outbox_dead_letters as dead_letter
        set resolution = 'replayed', resolved_at = now(), resolved_by = v_replay.requested_by, resolution_reason = v_replay.reason,
            replay_state = 'requeued'
        from back where dead_letter.id = back.id
        returning 1
    )
    select count(*) into v_moved from moved;
    if v_moved < cardinality(v_dead_letters) then
        with rest as (
            update outbox_dead_letters as dead_letter
            set replay_state = case when exists (select from outbox_events where id = dead_letter.event_id) then 'not_dead' else 'gone' end
            where id = any (v_dead_letters) and replay_id = p_id and replay_state = 'waiting'
            returning replay_state
        )
        select count(*) filter (where replay_state = 'gone'), count(*) filter (where replay_state = 'not_dead') into v_gone, v_changed from rest;
    end if;
    update outbox_replays
    set paced_at = case when v_replay.requeued >= canary then coalesce(paced_at, now()) end,
        waiting = waiting - cardinality(v_dead_letters), requeued = requeued + v_moved, pending = pending + v_moved,
        gone = gone + v_gone, not_dead = not_dead + v_changed, claimed = claimed + cardinality(v_dead_letters) - v_moved - v_gone - v_changed,
        finished_at = case when waiting = cardinality(v_dead_letters) and pending + failing + v_moved = 0 then now() end
    where id = p_id;
    return cardinality(v_dead_letters);
end
$$;

-- outbox_replay_observe reads the outcomes of the events that a replay has put back, stops it when too many of the newest
-- 100 have failed, and returns whether one was new. An event whose first attempt failed has failed, though it is tried
-- again. A later dead letter says that an event is dead again. A row that is not there any more was delivered when a sweep may
-- have removed it since; else it is gone. With p_most it reads that many new outcomes at most, so that it ends soon: the others
-- count as before, until the next time.
create function outbox_replay_observe(p_id uuid, p_most integer default null) returns boolean
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
        select dead_letter.id, coalesce(dead_letter.seq, 0) as seq, dead_letter.replay_state as was, coalesce(later.error, event.last_error) as error, outcome.is_now
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
        returning seen.seq, seen.was, seen.is_now, seen.error
    ),
    counted as (
        select count(*) as n, count(*) filter (where was = 'requeued') as first,
            count(*) filter (where is_now = 'failing') - count(*) filter (where was = 'failing') as failing,
            count(*) filter (where is_now = 'delivered') as delivered, count(*) filter (where is_now = 'dead_again') as dead_again,
            count(*) filter (where is_now = 'gone') as gone,
            coalesce(string_agg(case is_now when 'delivered' then '+' else '-' end, '' order by seq) filter (where was = 'requeued'), '') as outcomes,
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

-- outbox_replay_stop gives up what waits of a replay: its dead letters stay open, and others may claim them. What was put back
-- stays so. One that is finished, or was stopped before, stays as it is.
create function outbox_replay_stop(p_id uuid, p_reason text) returns void
language sql security definer
begin atomic
    update outbox_replays
    set stopped_reason = p_reason, stopped = waiting, waiting = 0, finished_at = case when pending + failing = 0 then now() end
    where id = p_id and waiting > 0;
end;

-- outbox_replay_sweep is what retention does with operations: it reads the outcomes of those that no process watches, gives up
-- those that no process has run for p_age, and removes those that finished before p_age, and 90 days ago at least. One that the
-- journal may have records of stays, since verify looks for it. It returns how many it removed. An empty namespace is all.
--
-- Whatever replays have put back, it ends before the 5 seconds of retention's statements, which would undo it: it reads 2,000
-- outcomes at a time for 2 seconds, and what is left over is read by the next run. In a random order, so that none is always the one that is left over.
create function outbox_replay_sweep(p_namespace text, p_age interval) returns integer
language plpgsql security definer set search_path from current
as $$
declare
    v_open    outbox_replays;
    v_removed integer;
begin
    <<replays>>
    for v_open in
        select * from outbox_replays where finished_at is null and (p_namespace = '' or namespace = p_namespace) order by random() for update skip locked
    loop
        loop
            exit replays when clock_timestamp() > statement_timestamp() + interval '2 seconds';
            exit when not outbox_replay_observe(v_open.id, 2000);
        end loop;
        if v_open.seen_at < now() - p_age then
            perform outbox_replay_stop(v_open.id, 'retention: no process has run it since ' || v_open.seen_at);
        end if;
    end loop;
    delete from outbox_replays
    where finished_at < now() - greatest(p_age, interval '90 days') and (p_namespace = '' or namespace = p_namespace)
        -- Its records are later than the beginning of their transaction, which is finished_at.
        and not exists (select from outbox_journal_settings where enabled and outbox_replays.finished_at >= since - interval '1 day');
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

revoke all on function outbox_replay_sweep, outbox_replay_claims, outbox_replay_begin, outbox_replay_step, outbox_replay_observe, outbox_replay_stop from public;
