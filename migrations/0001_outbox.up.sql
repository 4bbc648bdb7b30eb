-- oldest-reader: 1
--
-- The tables of the outbox: events, dead letters, replays and workers.
-- Names are unqualified: the migrator sets search_path to the schema that the user chose.

-- One number for each claim statement: the lease of all rows that it takes, and the fencing token that
-- consumers see. It only rises, through retries, releases and replays.
create sequence outbox_leases as bigint;

-- Columns that never change come first, the payload too. An UPDATE then writes only the tail of
-- the row to the WAL: claim and ack together take half the bytes.
--
-- key_hash and size_bytes are values that enqueue gives: the expressions of generated columns are compiled again for each
-- statement, which was half of a single insert. A trigger fills them in a row that comes by a plain INSERT, as at an
-- adoption. What else a producer can get wrong is checked by enqueue, once. The one check that is here guards the
-- states, which the engine and people change.
create table outbox_events (
    id              uuid        not null,
    seq             bigint      not null generated always as identity,
    created_at      timestamptz not null default now(),
    key_hash        bigint,
    aggregate_sequence bigint,
    size_bytes      integer     not null,
    max_attempts    smallint,
    tenant_id       uuid,
    namespace       text        not null,
    topic           text        not null,
    event_type      text,
    aggregate_type  text,
    aggregate_id    text,
    partition_key   text,
    dedupe_key      text,
    retry           jsonb,
    headers         jsonb       not null default '{}',
    payload         jsonb       not null,

    -- From here on, what transitions change. Fixed-width columns first, so that nothing is padded.
    next_attempt_at timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    locked_until    timestamptz,
    lease           bigint      not null default 0,
    attempts        integer     not null default 0,
    suspicion       smallint,
    locked_by       uuid,
    live            boolean     not null generated always as (status in ('pending', 'processing')) stored,
    status          text        not null default 'pending',
    dead_reason     text,
    last_error      text,
    failures        jsonb,
    fault_since     timestamptz,

    constraint outbox_events_pkey primary key (id),
    constraint outbox_events_status check (status in ('pending', 'processing', 'delivered', 'dead')
        and (status = 'dead') = (dead_reason is not null)
        and (status = 'processing') = (locked_by is not null and locked_until is not null))
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
comment on column outbox_events.key_hash is 'Hash of the ordering key: partition_key, else aggregate_id, of its namespace and topic. Null for none.';
comment on column outbox_events.aggregate_sequence is 'The number of the event in its aggregate, from 1 without gaps, when its producer requested one. Null: it did not.';
comment on column outbox_events.size_bytes is 'Size of payload and headers as text, these without their braces: what the event takes in a dispatcher''s memory.';
comment on column outbox_events.next_attempt_at is 'When the row may be claimed. The one field that schedules a retry.';
comment on column outbox_events.attempts is 'The part of the retry budget that is used up: rises at a claim, falls when a claim is given back, is 0 again after a replay.';
comment on column outbox_events.lease is 'The number of the last claim of this row: it guards every write-back, and is published as the fencing token.';
comment on column outbox_events.suspicion is 'Set by the claim of a row whose lease ended without an outcome, since its delivery may have ended the process: 1, and one more each time that it begins then. At 5 the row is dead when its lease ends. Null: the last lease had an outcome.';
comment on column outbox_events.max_attempts is 'The retry budget of this row, from 1 to 1000. Null: the dispatcher''s. 32767 is for workers that know no limit.';
comment on column outbox_events.retry is 'The backoff of this row, with the names of the dispatcher''s: strategy, base, max, multiplier, jitterPercent. Null: the dispatcher''s.';
comment on column outbox_events.locked_by is 'The worker that holds the lease, until locked_until.';
comment on column outbox_events.failures is 'The last five failed attempts, oldest first: [{"at", "attempt", "class", "code", "place", "error"}], without those that are empty. Null: none failed since the event was added or replayed.';
comment on column outbox_events.live is 'Not yet delivered or dead. It is in the index so that status need not be.';

-- The one index of the engine: claims, retries and expired leases are all one range of it. It
-- names no column that a claim changes.
create index outbox_events_live on outbox_events (namespace, topic, next_attempt_at, id) where live;

-- The rows of a key in their order, for dispatchers that keep it. It holds two numbers and nothing of
-- events without a key, and claims do not touch it either. The hash has 64 bits: two keys with the
-- same one, which would wait for each other, are not to be expected.
create index outbox_events_key on outbox_events (key_hash, seq) where live and key_hash is not null;

-- Workers in other languages, whose functions know a row by a bigint, find it by seq. Unique: order per
-- key compares seq, and an adoption may bring numbers of its own. Claims and acks do not touch it. The
-- condition is that of the other indexes in other words, on purpose: with "where live" the planner takes this
-- index for claims, and walks it from end to end. A statement that wants it says coalesce(live, false).
create unique index outbox_events_seq on outbox_events (seq) where coalesce(live, false);

-- A dedupe key adds one event to its topic, ever: also after the first is delivered.
create unique index outbox_events_dedupe on outbox_events (namespace, topic, dedupe_key) where dedupe_key is not null;

-- The last number of each aggregate whose producers request one. A row is locked from the enqueue until the
-- transaction ends, and a rollback takes the number back: so committed events have no gaps, and the order of the
-- numbers is that of seq and of the commits.
create table outbox_aggregate_sequences (
    namespace      text   not null,
    aggregate_type text   not null,
    aggregate_id   text   not null,
    last           bigint not null,

    constraint outbox_aggregate_sequences_pkey primary key (namespace, aggregate_type, aggregate_id)
) with (
    -- Room for the next version of each row, so that a number touches no index.
    fillfactor = 50
);

comment on table outbox_aggregate_sequences is 'One row per aggregate whose events are numbered: enqueue with the option aggregateSequence.';
comment on column outbox_aggregate_sequences.aggregate_type is 'Empty for events without one.';
comment on column outbox_aggregate_sequences.last is 'The number of its last event. It outlives the event: a row that is removed begins at 1 again.';

-- A row each time that an event becomes dead. A replay, a discard or retention resolves it. There is no foreign key:
-- it would lock the event's row once more each time.
--
-- The fingerprint is the group: dead letters of one topic for one cause have the same. It is that of
-- dispatcher.Fingerprint in Go. A backslash is doubled, since bytea would take it for the beginning of a code.
create table outbox_dead_letters (
    id             bigint      not null generated always as identity primary key,
    event_id       uuid        not null,
    namespace      text        not null,
    topic          text        not null,
    seq            bigint,
    key_hash       bigint,
    -- Copies of the event's, which triage filters by.
    event_type     text,
    aggregate_type text,
    aggregate_id   text,
    tenant_id      uuid,
    reason         text        not null,
    -- What failed, in one word; the code of the destination or the name of the rule; and where in the event.
    class          text        not null default '',
    code           text        not null default '',
    place          text        not null default '',
    fingerprint    text        not null generated always as (left(encode(sha256(replace(topic || E'\n' || reason || E'\n' ||
                                   class || E'\n' || code || E'\n' || place, '\', '\\')::bytea), 'hex'), 8)) stored,
    attempts       integer     not null,
    dead_at        timestamptz not null default now(),
    worker         uuid,
    error          text,
    failures       jsonb       not null default '[]',
    response       text,

    resolution        text,
    resolved_at       timestamptz,
    resolved_by       text,
    resolution_reason text,
    replay_id         uuid,
    replay_state      text,

    -- The notification of an address. A transaction that sets outbox.notify to on requests it, whatever adds the row.
    notify_at         timestamptz default case when current_setting('outbox.notify', true) = 'on' then now() end,
    notify_attempts   integer,
    notified_at       timestamptz,

    constraint outbox_dead_letters_keyed check (key_hash is null or seq is not null),
    constraint outbox_dead_letters_reason check (reason in ('max_retries_exceeded', 'poison_message',
        'schema_validation_failed', 'processing_timeout', 'permanent_failure')),
    constraint outbox_dead_letters_resolution check (resolution in ('replayed', 'discarded', 'expired')),
    constraint outbox_dead_letters_resolved check (num_nulls(resolution, resolved_at, resolved_by) = 0
        or num_nonnulls(resolution, resolved_at, resolved_by, resolution_reason) = 0),
    constraint outbox_dead_letters_replay_state check (replay_state in ('waiting', 'requeued', 'failing', 'delivered', 'dead_again', 'gone', 'not_dead'))
);

comment on table outbox_dead_letters is 'A row each time that an event becomes dead: why, and what a person did about it.';
comment on column outbox_dead_letters.class is 'What failed, in one word: the sink''s kind, schema, rule, route, mask, decode, handler, lease. Empty: not known.';
comment on column outbox_dead_letters.code is 'The destination''s own code, or the name of the rule: 422, MESSAGE_TOO_LARGE. Never a value of the event.';
comment on column outbox_dead_letters.place is 'Where in the event, with * for the index of an array: /items/*/price.';
comment on column outbox_dead_letters.fingerprint is 'The group: 8 hex digits of SHA-256 over topic, reason, class, code and place.';
comment on column outbox_dead_letters.worker is 'The worker that had the lease.';
comment on column outbox_dead_letters.error is 'The event''s last error.';
comment on column outbox_dead_letters.failures is 'The last five failed attempts, as in outbox_events.';
comment on column outbox_dead_letters.response is 'The response of the destination, at most 1 KiB, when the dispatcher has captureResponse.';
comment on column outbox_dead_letters.resolved_by is 'Who handled it: a person, or retention.';
comment on column outbox_dead_letters.resolution_reason is 'Why, in the words of who did it.';
comment on column outbox_dead_letters.replay_id is 'The last operation that claimed or handled it: the id in outbox_replays.';
comment on column outbox_dead_letters.replay_state is 'What became of it in that replay: waiting, then requeued, then failing, delivered, dead_again or gone; or not_dead.';
comment on column outbox_dead_letters.notify_at is 'When the address is to be notified. Null: never, or no more.';
comment on column outbox_dead_letters.notify_attempts is 'How often that was begun. Null: never.';
comment on column outbox_dead_letters.notified_at is 'When the address had taken it.';

-- The open dead letters, group by group.
create index outbox_dead_letters_open on outbox_dead_letters (namespace, topic, fingerprint, dead_at) where resolution is null;

-- The dead letters of which an address is to be notified, for dispatchers that have one. Others have no entry.
create index outbox_dead_letters_notify on outbox_dead_letters (namespace, notify_at) where notify_at is not null;

-- How many became dead of late. The condition, which always holds, keeps other queries off this index: without statistics the
-- planner would read all of a namespace from it. A statement that wants it says the same.
create index outbox_dead_letters_dead_at on outbox_dead_letters (namespace, dead_at) where coalesce(reason <> '', false);

-- The history of an event. With the id, "none of the event is later" is one probe of the index alone, and the planner,
-- when it knows nothing of the table, does not join it with the primary key: for 100,000 dead letters that had not ended after 10 minutes.
create index outbox_dead_letters_event on outbox_dead_letters (event_id, id);

-- Those that later events of their key may have to wait for.
create index outbox_dead_letters_key on outbox_dead_letters (key_hash, seq) where resolution is null and key_hash is not null;

-- Keys whose dead rows may have been replayed: claims in order look for earlier rows of these from the first one on.
create index outbox_dead_letters_resolved on outbox_dead_letters (key_hash) where resolution is not null and key_hash is not null;

-- The dead letters of an operation, by what became of them and in the order of insertion: what it puts back next, and whose
-- outcome is open.
create index outbox_dead_letters_replay on outbox_dead_letters (replay_id, replay_state, coalesce(seq, 0), id) where replay_id is not null;

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

-- Whether a replay that runs has claimed a dead letter. A function, so that it is written once.
create function outbox_replay_claims(p_replay uuid, p_state text) returns boolean
language sql stable strict
return p_state = 'waiting' and exists (
    select from outbox_replays
    where id = p_replay and finished_at is null and stopped_reason is null and seen_at > now() - interval '1 minute'
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
    update outbox_replays set seen_at = now() where id = p_id and seen_at < now() - interval '5 seconds';
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
          and other.id <> p_id and other.topics && v_replay.topics and other.seen_at > now() - interval '1 minute';
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
            next_attempt_at = now(), updated_at = now()
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
    set waiting = waiting - cardinality(v_dead_letters), requeued = requeued + v_moved, pending = pending + v_moved,
        gone = gone + v_gone, not_dead = not_dead + v_changed, claimed = claimed + cardinality(v_dead_letters) - v_moved - v_gone - v_changed,
        finished_at = case when waiting = cardinality(v_dead_letters) and pending + failing + v_moved = 0 then now() end
    where id = p_id;
    return cardinality(v_dead_letters);
end
$$;

-- outbox_replay_observe reads the outcomes of the events that a replay has put back, stops it when too many of the newest
-- 100 have failed, and returns whether one was new. An event whose first attempt failed has failed, though it is tried
-- again. A later dead letter says that an event is dead again. A row that is not there any more was delivered when a sweep may
-- have removed it since; else it is gone.
create function outbox_replay_observe(p_id uuid) returns boolean
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
        select dead_letter.id, coalesce(dead_letter.seq, 0) as seq, dead_letter.replay_state as was, coalesce(later.error, event.last_error) as error, case
                when later.id is not null or event.status = 'dead' then 'dead_again'
                when event.status = 'delivered' then 'delivered'
                when event.id is null and dead_letter.resolved_at <= now() - v_kept then 'delivered'
                when event.id is null then 'gone'
                when event.last_error is not null then 'failing'
                else 'requeued'
            end as is_now
        from outbox_dead_letters as dead_letter
        left join outbox_events as event on event.id = dead_letter.event_id
        left join lateral (
            select id, error from outbox_dead_letters as later
            where later.event_id = dead_letter.event_id and later.id > dead_letter.id order by event_id, id limit 1
        ) as later on true
        where dead_letter.replay_id = p_id and dead_letter.replay_state in ('requeued', 'failing')
    ),
    noted as (
        update outbox_dead_letters as dead_letter set replay_state = seen.is_now
        from seen where dead_letter.id = seen.id and seen.is_now <> seen.was
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
-- those that no process has run for p_age, and removes those that finished before p_age, and 90 days ago at least. It returns
-- how many it removed. An empty namespace is all.
create function outbox_replay_sweep(p_namespace text, p_age interval) returns integer
language plpgsql security definer set search_path from current
as $$
declare
    v_open    outbox_replays;
    v_removed integer;
begin
    for v_open in
        select * from outbox_replays where finished_at is null and (p_namespace = '' or namespace = p_namespace) for update skip locked
    loop
        perform outbox_replay_observe(v_open.id);
        if v_open.seen_at < now() - p_age then
            perform outbox_replay_stop(v_open.id, 'retention: no process has run it since ' || v_open.seen_at);
        end if;
    end loop;
    delete from outbox_replays
    where finished_at < now() - greatest(p_age, interval '90 days') and (p_namespace = '' or namespace = p_namespace);
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

revoke all on function outbox_replay_sweep, outbox_replay_claims, outbox_replay_begin, outbox_replay_step, outbox_replay_observe, outbox_replay_stop from public;

-- The dispatchers' processes that run. Each updates its row every few seconds. A process that was not seen for a
-- while is gone; another removes its row.
create table outbox_workers (
    worker     uuid        not null,
    dispatcher text        not null,
    namespace  text        not null,
    topics     text[]      not null default '{}',
    version    text,
    blocks     boolean     not null default false,
    paused     boolean     not null default false,
    paused_topics jsonb    not null default '{}',
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now(),
    delivered_5m bigint    not null default 0,
    failed_5m    bigint    not null default 0,
    delivered_1h bigint    not null default 0,
    failed_1h    bigint    not null default 0,

    constraint outbox_workers_pkey primary key (worker)
);

comment on table outbox_workers is 'One row per process of a dispatcher that runs: who shares the work, and who serves which topics.';
comment on column outbox_workers.worker is 'What outbox_events.locked_by names.';
comment on column outbox_workers.topics is 'The topics that it serves. Empty: all of its namespace.';
comment on column outbox_workers.blocks is 'Whether its keys wait behind a dead event: onDead Block.';
comment on column outbox_workers.paused is 'Whether it claims nothing: state Paused.';
comment on column outbox_workers.paused_topics is 'Why it claims nothing, or little, of a topic: {"orders": "..."}. An empty name is all topics.';
comment on column outbox_workers.seen_at is 'When it last updated this row, on the database''s clock.';
comment on column outbox_workers.delivered_5m is 'The events that it marked delivered in the 5 minutes before seen_at.';
comment on column outbox_workers.failed_5m is 'Its deliveries that failed in the 5 minutes before seen_at.';
comment on column outbox_workers.delivered_1h is 'The events that it marked delivered in the hour before seen_at.';
comment on column outbox_workers.failed_1h is 'Its deliveries that failed in the hour before seen_at.';

-- The sweeps of retention: the one of the whole tables, which is "retention", and those of dispatchers that
-- sweep their own topics. One at a time works: who holds the row "retention", until held_until on the
-- database's clock.
create table outbox_sweeps (
    name       text        not null,
    holder     uuid,
    held_until timestamptz,
    pages      bigint      not null default 0,
    position   bigint      not null default 0,
    began_at   timestamptz,
    ended_at   timestamptz,
    next_run   timestamptz not null default now(),
    seconds    double precision not null default 0,
    namespace  text        not null default '',
    delivered_after interval,
    delivered  bigint      not null default 0,
    dead       bigint      not null default 0,
    expired    bigint      not null default 0,
    dead_letters    bigint      not null default 0,

    constraint outbox_sweeps_pkey primary key (name),
    constraint outbox_sweeps_held check (num_nulls(holder, held_until) in (0, 2))
);

comment on table outbox_sweeps is 'One row per sweep of retention: how far it is, what it has removed, and when it runs next.';
comment on column outbox_sweeps.holder is 'The worker that sweeps, in the row "retention" alone.';
comment on column outbox_sweeps.pages is 'The pages of outbox_events when the run began.';
comment on column outbox_sweeps.position is 'The page that is next. Another worker continues from there.';
comment on column outbox_sweeps.began_at is 'When the current run began. Null: none is under way.';
comment on column outbox_sweeps.ended_at is 'When the last whole run ended.';
comment on column outbox_sweeps.seconds is 'How long the last whole run took.';
comment on column outbox_sweeps.namespace is 'Of the rows that it sweeps. Empty: all.';
comment on column outbox_sweeps.delivered_after is 'How long delivered rows stay. A row that is missing after that may have been delivered.';
comment on column outbox_sweeps.delivered is 'Delivered rows that were removed, ever.';
comment on column outbox_sweeps.dead is 'Dead rows that were removed after their resolution, ever.';
comment on column outbox_sweeps.expired is 'Dead letters that retention resolved, ever: deadUnresolved.';
comment on column outbox_sweeps.dead_letters is 'Dead letters that were removed, ever.';
