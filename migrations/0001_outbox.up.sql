-- oldest-reader: 1
--
-- The outbox: events, dead letters, workers, and the functions that producers call.
-- Names are unqualified: the migrator sets search_path to the schema that the user chose.

-- One number for each claim statement: the lease of all rows that it takes, and the fencing token that
-- consumers see. It only rises, through retries, releases and replays.
create sequence outbox_leases as bigint;

-- Columns that never change come first, the payload too. An UPDATE then writes only the tail of
-- the row to the WAL: claim and ack together take half the bytes.
--
-- key_hash and size_bytes are generated, so that a row that comes by a plain INSERT, as at an adoption,
-- is ordered and counted too. What else a producer can get wrong is checked by enqueue, once: each check
-- here costs a single insert 3 us of CPU time, and each claim and ack too. The checks that are here guard
-- the states, which the engine and people change.
create table outbox_events (
    id              uuid        not null,
    seq             bigint      not null generated always as identity,
    created_at      timestamptz not null default now(),
    key_hash        bigint      generated always as (hashtextextended(
                                    coalesce(nullif(partition_key, ''), nullif(aggregate_id, '')),
                                    hashtextextended(topic, hashtextextended(namespace, 0)))) stored,
    aggregate_sequence bigint,
    size_bytes      integer     not null generated always as (octet_length(payload::text) + octet_length(headers::text) - 2) stored,
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
    locked_by       uuid,
    live            boolean     not null generated always as (status in ('pending', 'processing')) stored,
    status          text        not null default 'pending',
    dead_reason     text,
    last_error      text,
    failures        jsonb,

    constraint outbox_events_pkey primary key (id),
    constraint outbox_events_status check (status in ('pending', 'processing', 'delivered', 'dead')),
    constraint outbox_events_dead_reason check ((status = 'dead') = (dead_reason is not null)),
    constraint outbox_events_leased check ((status = 'processing') = (locked_by is not null and locked_until is not null))
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

    -- The notification of an address. A transaction that sets outbox.notify to on requests it, whatever adds the row.
    notify_at         timestamptz default case when current_setting('outbox.notify', true) = 'on' then now() end,
    notify_attempts   integer,
    notified_at       timestamptz,

    constraint outbox_dead_letters_keyed check (key_hash is null or seq is not null),
    constraint outbox_dead_letters_reason check (reason in ('max_retries_exceeded', 'poison_message',
        'schema_validation_failed', 'processing_timeout', 'permanent_failure')),
    constraint outbox_dead_letters_resolution check (resolution in ('replayed', 'discarded', 'expired')),
    constraint outbox_dead_letters_resolved check (num_nulls(resolution, resolved_at, resolved_by) = 0
        or num_nonnulls(resolution, resolved_at, resolved_by, resolution_reason, replay_id) = 0)
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
comment on column outbox_dead_letters.replay_id is 'The replay that did it, if it was one: the id in outbox_replays.';
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

-- One row per replay or discard of a set of dead letters. The set is fixed
-- when it begins, and is in outbox_replay_items.
create table outbox_replays (
    id             uuid        not null,
    namespace      text        not null,
    action         text        not null,
    reason         text        not null,
    requested_by   text        not null,
    filter         jsonb       not null,
    rate           integer     not null,
    canary         integer     not null,
    abort_at       integer     not null,
    ordering       text        not null,
    began_at       timestamptz not null default now(),
    matched        bigint      not null default 0,
    finished_at    timestamptz,
    stopped_reason text,
    delivered      bigint,
    dead_again     bigint,
    discarded      bigint,
    skipped        jsonb,

    constraint outbox_replays_pkey primary key (id),
    constraint outbox_replays_action check (action in ('replay', 'discard')),
    constraint outbox_replays_ordering check (ordering in ('key', 'none')),
    constraint outbox_replays_bounds check (rate > 0 and canary >= 0 and abort_at between 0 and 100)
);

comment on table outbox_replays is 'One row per replay or discard.';
comment on column outbox_replays.reason is 'The reason, in the words of who requested it.';
comment on column outbox_replays.filter is 'What was requested: the topics, and the members of the filter.';
comment on column outbox_replays.rate is 'The most events a second.';
comment on column outbox_replays.canary is 'How many events go first, and alone, until their outcome is known. 0: none.';
comment on column outbox_replays.abort_at is 'The percentage of known outcomes that are dead again, at which it stops. 0: it continues.';
comment on column outbox_replays.ordering is 'key: the next dead letter of a key when the event before it is delivered. none: all at the rate.';
comment on column outbox_replays.matched is 'The size of its set when it began.';
comment on column outbox_replays.finished_at is 'When the last outcome was known.';
comment on column outbox_replays.delivered is 'How many were put back and delivered. Like the next three it is written when the replay finishes, and stays when retention removes the set.';
comment on column outbox_replays.dead_again is 'How many were put back and are dead again.';
comment on column outbox_replays.discarded is 'How many are handled and stay dead.';
comment on column outbox_replays.skipped is 'How many were left as they were, by the reason: {"gone": 1}. Null: none.';
comment on column outbox_replays.stopped_reason is 'Why what waited was given up: by whom, or that too many are dead again.';

-- The set of a replay: the dead letters that were open when it began. There is no foreign key: it would double what a
-- large set costs.
create table outbox_replay_items (
    replay_id uuid        not null,
    dead_letter_id bigint not null,
    event_id  uuid        not null,
    key_hash  bigint,
    seq       bigint      not null,
    at        timestamptz not null default now(),
    state     text        not null default 'waiting',
    skipped   text,

    constraint outbox_replay_items_pkey primary key (dead_letter_id, replay_id),
    constraint outbox_replay_items_state check (state in ('waiting', 'requeued', 'discarded', 'delivered', 'dead_again', 'skipped')),
    constraint outbox_replay_items_skipped check ((state = 'skipped') = (skipped is not null))
);

comment on table outbox_replay_items is 'One row per dead letter of a replay, and what became of it.';
comment on column outbox_replay_items.state is 'waiting, then requeued, then delivered or dead_again; or discarded; or skipped.';
comment on column outbox_replay_items.skipped is 'Why: already_resolved, not_dead, gone, earlier_dead or stopped.';

-- What a replay has left to do, in the order of insertion, and what it has in each state. Statements that look items
-- up by their dead letters say coalesce(replay_id, ...): the planner, which knows nothing of a set that is new, would
-- read all of it here.
create index outbox_replay_items_state on outbox_replay_items (replay_id, state, seq, dead_letter_id);

-- The earlier items of a key that are not done.
create index outbox_replay_items_key on outbox_replay_items (replay_id, key_hash, seq)
    where state in ('waiting', 'requeued') and key_hash is not null;

-- outbox_resolve replays or discards dead letters of a replay, and returns how many items had their turn. A replay login
-- may change events and dead letters only by it: a dead row goes back to pending, an open dead letter is resolved, and
-- each records who requested it and why.
--
-- A dead letter that is resolved, or whose row is gone or not dead any more, is skipped with the reason. Replay, dead letters
-- and rows are locked in this order, each in that of its ids, so that two calls never wait for each other in a
-- circle. The statement after the locks sees what was committed before them.
--
-- A row that goes back has its whole retry budget again. Its lease stays, so that the fencing token keeps rising.
-- Its old failures are in the dead letter.
create function outbox_resolve(p_replay uuid, p_dead_letters bigint[]) returns integer
language plpgsql
security definer
set search_path from current
-- Each dead letter and each row is looked up by its id, whatever the planner knows of the tables.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_sort = on
set jit = off
as $$
declare
    v_replay outbox_replays;
    v_dead_letters   bigint[]; -- that are done, and their events
    v_events    uuid[];
    v_skipped   bigint[]; -- that are skipped, and why
    v_reasons   text[];
    v_done      integer;
begin
    select * into v_replay from outbox_replays where id = p_replay for update;
    perform from outbox_dead_letters where id = any (p_dead_letters) order by id for update;
    if v_replay.action = 'replay' then
        -- Dead rows alone: the others are the dispatchers', which lock them in an order of their own.
        perform from outbox_events
        where id = any (array(select event_id from outbox_dead_letters where id = any (p_dead_letters)))
            and status = 'dead'
        order by id for update;
    end if;

    -- OFFSET 0 keeps the state out of there, and no statement here says that a dead letter is open: the planner would be
    -- tempted by the partial indexes, which it believes to be small, and would read all of them.
    select array_agg(dead_letter_id) filter (where skipped is null), array_agg(event_id) filter (where skipped is null),
        array_agg(dead_letter_id) filter (where skipped is not null), array_agg(skipped) filter (where skipped is not null), count(*)
    into v_dead_letters, v_events, v_skipped, v_reasons, v_done
    from (
        select item.dead_letter_id, dead_letter.event_id, case
            when dead_letter.id is null or dead_letter.resolution is not null then 'already_resolved'
            when v_replay.action = 'discard' then null
            when event.id is null then 'gone'
            when event.status <> 'dead' then 'not_dead'
        end as skipped
        from (select * from outbox_replay_items where dead_letter_id = any (p_dead_letters) and coalesce(replay_id, p_replay) = p_replay offset 0) as item
        left join outbox_dead_letters as dead_letter on dead_letter.id = item.dead_letter_id
        left join outbox_events as event on event.id = dead_letter.event_id
        where item.state = 'waiting'
    ) as became;

    if v_replay.action = 'replay' then
        update outbox_events
        set status = 'pending', dead_reason = null, last_error = null, failures = null, attempts = 0,
            next_attempt_at = now(), updated_at = now()
        where id = any (v_events);
    end if;
    update outbox_dead_letters
    set resolution = case v_replay.action when 'replay' then 'replayed' else 'discarded' end, resolved_at = now(),
        resolved_by = v_replay.requested_by, resolution_reason = v_replay.reason, replay_id = p_replay
    where id = any (v_dead_letters);
    update outbox_replay_items
    set state = case v_replay.action when 'replay' then 'requeued' else 'discarded' end, at = now()
    where dead_letter_id = any (v_dead_letters) and coalesce(replay_id, p_replay) = p_replay;
    update outbox_replay_items
    set state = 'skipped', skipped = v_reasons[array_position(v_skipped, dead_letter_id)], at = now()
    where dead_letter_id = any (v_skipped) and coalesce(replay_id, p_replay) = p_replay;
    return v_done;
end
$$;

revoke all on function outbox_resolve from public;

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
comment on column outbox_sweeps.delivered is 'Delivered rows that were removed, ever.';
comment on column outbox_sweeps.dead is 'Dead rows that were removed after their resolution, ever.';
comment on column outbox_sweeps.expired is 'Dead letters that retention resolved, ever: deadUnresolved.';
comment on column outbox_sweeps.dead_letters is 'Dead letters that were removed, ever.';

-- enqueue_retry_problem says what is wrong with a row's backoff, or null. The rules are those of a
-- dispatcher's backoff.
create function enqueue_retry_problem(p_retry jsonb) returns text
language plpgsql
as $$
declare
    v_strategy text := coalesce(p_retry ->> 'strategy', 'Exponential');
    v_name     text;
    v_millis   numeric[];
begin
    if jsonb_typeof(p_retry) <> 'object' then
        return 'is not an object; give one such as {"strategy": "Linear", "base": "10s", "max": "10m"}';
    end if;
    select key into v_name from jsonb_object_keys(p_retry) as key
        where key <> all ('{strategy,base,max,multiplier,jitterPercent}') order by key limit 1;
    if found then
        return format('has the unknown name %s; use strategy, base, max, multiplier and jitterPercent', to_json(left(v_name, 100)));
    elsif v_strategy not in ('Exponential', 'Multiplier', 'PowerOfTwo', 'Linear') or jsonb_typeof(p_retry -> 'strategy') <> 'string' then
        return 'has an unknown strategy; choose Exponential, Multiplier, PowerOfTwo or Linear';
    elsif v_strategy <> 'Multiplier' and p_retry ?| '{multiplier,jitterPercent}' then
        return 'has multiplier or jitterPercent without strategy Multiplier; set it, or remove them';
    elsif v_strategy = 'PowerOfTwo' and p_retry ?| '{base,max}' then
        return 'has base or max with strategy PowerOfTwo, whose delays are fixed; remove them';
    end if;

    foreach v_name in array '{base,max}'::text[] loop
        if p_retry ? v_name and (jsonb_typeof(p_retry -> v_name) <> 'string' or length(p_retry ->> v_name) > 32
                or p_retry ->> v_name !~ '^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') then
            return v_name || ' is not a duration; write it such as "500ms", "30s" or "1m30s"';
        end if;
        v_millis := v_millis || (select sum(part[1]::numeric * case part[2] when 'ms' then 1 when 's' then 1000 when 'm' then 60000 else 3600000 end)
            from regexp_matches(coalesce(p_retry ->> v_name, case v_name || v_strategy when 'baseLinear' then '60s'
                else case v_name when 'base' then '1s' else '1h' end end), '([0-9]+(?:[.][0-9]+)?)(ms|s|m|h)', 'g') as part);
    end loop;
    if least(v_millis[1], v_millis[2]) < 1 or greatest(v_millis[1], v_millis[2]) > 86400000 then
        return 'has a base or max outside 1ms to 24h; choose one within';
    elsif v_millis[1] > v_millis[2] then
        return 'has a base above max (when not set base is 1s, for Linear 60s, and max 1h); lower base or raise max';
    elsif p_retry ? 'multiplier' and (jsonb_typeof(p_retry -> 'multiplier') <> 'string'
            or p_retry ->> 'multiplier' !~ '^([1-9]([.][0-9]+)?|10([.]0+)?)$' or length(p_retry ->> 'multiplier') > 8) then
        return 'has a multiplier that is not a decimal from "1" to "10" in quotes; write it such as "1.5"';
    elsif p_retry ? 'jitterPercent' and (jsonb_typeof(p_retry -> 'jitterPercent') <> 'number'
            or p_retry ->> 'jitterPercent' !~ '^([0-9]|[1-9][0-9]|100)$') then
        return 'has a jitterPercent that is not a whole number from 0 to 100; correct it';
    end if;
    return null;
end
$$;

-- enqueue_check raises what is wrong with an event, and names it by p_place, which is empty for a single one.
-- It returns true, so that it can stand in a condition. The functions below call it for what is not
-- plainly right.
create function enqueue_check(
    p_place text, p_namespace text, p_topic text, p_payload_missing boolean, p_event_type text, p_aggregate_type text,
    p_aggregate_id text, p_partition_key text, p_tenant_id uuid, p_dedupe_key text, p_headers jsonb, p_delay interval,
    p_lock_key boolean, p_options jsonb
) returns boolean
language plpgsql
as $$
declare
    v_name  text;
    v_what  text;
    v_hint  text;
begin
    -- 2,600 bytes are what an entry of an index holds in addition to the rest.
    if coalesce(p_namespace, '') = '' then
        v_what := 'the namespace is missing';
        v_hint := 'Give the namespace that a dispatcher serves.';
    elsif coalesce(p_topic, '') = '' then
        v_what := 'the topic is missing';
        v_hint := 'Give the topic of the event.';
    elsif length(p_namespace) > 255 or length(p_topic) > 255 then
        v_what := format('the namespace has %s and the topic %s characters', length(p_namespace), length(p_topic));
        v_hint := 'Use at most 255 characters for each.';
    elsif greatest(length(p_event_type), length(p_aggregate_type), length(p_aggregate_id), length(p_partition_key), length(p_dedupe_key)) > 1024 then
        v_what := 'the event type, the aggregate type, the aggregate id, the partition key or the dedupe key is too long';
        v_hint := 'Use at most 1024 characters for each, or a hash.';
    elsif octet_length(p_namespace) + octet_length(p_topic) + octet_length(p_dedupe_key) > 2600 then
        v_what := format('namespace, topic and dedupe key have %s bytes', octet_length(p_namespace) + octet_length(p_topic) + octet_length(p_dedupe_key));
        v_hint := 'Use at most 2600 bytes together, or a hash of the key.';
    elsif p_payload_missing then
        v_what := 'the payload is missing';
        v_hint := 'Give a JSON value; ''null''::jsonb is one.';
    elsif jsonb_typeof(p_headers) <> 'object' then
        v_what := 'the headers are not a JSON object';
        v_hint := 'Give an object of texts, numbers and booleans.';
    elsif p_headers @? 'strict $.* ? (@.type() == "object" || @.type() == "array")' then
        v_what := 'the headers have an object or an array as a value';
        v_hint := 'Give an object of texts, numbers and booleans.';
    elsif p_headers ? '' then
        v_what := 'the headers have an empty name';
        v_hint := 'Name the header, or remove it.';
    elsif octet_length(p_headers::text) > 65536 then
        v_what := format('the headers have %s bytes as text, more than 65536', octet_length(p_headers::text));
        v_hint := 'Put what is large into the payload.';
    elsif p_delay < '0' then
        v_what := 'the delay is negative';
        v_hint := 'Give 0 or more.';
    elsif p_tenant_id is not null and p_dedupe_key <> '' and not (
            strpos(p_dedupe_key, '/') > 0 and lower(split_part(p_dedupe_key, '/', 1))
                in (p_tenant_id::text, replace(p_tenant_id::text, '-', ''))) then
        v_what := 'the dedupe key does not start with the tenant id';
        v_hint := 'Start it with the UUID of the tenant and a slash.';
    elsif p_lock_key and coalesce(p_partition_key, '') = '' and coalesce(p_aggregate_id, '') = '' then
        v_what := 'there is no key to lock';
        v_hint := 'Give an aggregate id or a partition key, or leave out the lock.';
    elsif jsonb_typeof(p_options) <> 'object' then
        v_what := 'the options are not a JSON object';
        v_hint := 'Give an object with maxAttempts, retry or aggregateSequence, or leave it out.';
    elsif p_options <> '{}' then
        select key into v_name from jsonb_object_keys(p_options) as key
            where key not in ('maxAttempts', 'retry', 'aggregateSequence') order by key limit 1;
        if found then
            v_what := format('the option %s is unknown', to_json(left(v_name, 100)));
            v_hint := 'Use maxAttempts, retry and aggregateSequence, or migrate the schema to the version that knows it.';
        elsif p_options ? 'maxAttempts' and (jsonb_typeof(p_options -> 'maxAttempts') <> 'number'
                or p_options ->> 'maxAttempts' !~ '^([1-9][0-9]{0,2}|1000)$') then
            v_what := 'the option maxAttempts is not a whole number from 1 to 1000';
            v_hint := 'Correct it, or leave it out for the dispatcher''s.';
        elsif p_options ? 'aggregateSequence' and jsonb_typeof(p_options -> 'aggregateSequence') <> 'boolean' then
            v_what := 'the option aggregateSequence is neither true nor false';
            v_hint := 'Correct it, or leave it out for an event without a number.';
        elsif p_options -> 'aggregateSequence' = 'true' and coalesce(p_aggregate_id, '') = '' then
            v_what := 'there is no aggregate to number the event in';
            v_hint := 'Give an aggregate id, or leave out aggregateSequence.';
        elsif p_options -> 'aggregateSequence' = 'true'
                and octet_length(p_namespace) + octet_length(p_aggregate_id) + coalesce(octet_length(p_aggregate_type), 0) > 2600 then
            v_what := 'namespace, aggregate type and aggregate id have more than 2600 bytes, too many to number the event by';
            v_hint := 'Use at most 2600 bytes together, or a hash of the id.';
        elsif p_options ? 'retry' then
            v_what := 'the option retry ' || enqueue_retry_problem(p_options -> 'retry');
            v_hint := 'It has the names and limits of a dispatcher''s backoff.';
        end if;
    end if;
    if v_what is not null then
        raise exception 'outbox: %', p_place || v_what using errcode = 'invalid_parameter_value', hint = v_hint;
    end if;
    return true;
end
$$;

-- enqueue_check_sizes raises which payload is too large.
create function enqueue_check_sizes(p_payloads jsonb[], p_max_bytes integer, p_place text) returns boolean
language plpgsql
as $$
declare
    v_at    bigint;
    v_bytes integer;
begin
    select n, octet_length(payload::text) into v_at, v_bytes from unnest(p_payloads) with ordinality as u (payload, n)
        where octet_length(payload::text) > p_max_bytes order by n limit 1;
    raise exception 'outbox: %', format(p_place, v_at) || format('the payload has %s bytes, more than the limit of %s', v_bytes, p_max_bytes)
        using errcode = 'invalid_parameter_value', hint = 'Store large data elsewhere and send a reference, or raise p_max_bytes.';
end
$$;

-- enqueue_number gives those events that request one the next numbers of their aggregates, in their order, and null to
-- the others. The counters are locked in the order of their keys, so that two batches never wait for each other in a
-- circle. What enqueue_check refuses later gets none here.
create function enqueue_number(p_namespaces text[], p_aggregate_types text[], p_aggregate_ids text[], p_options jsonb) returns bigint[]
language sql
as $$
    with requested as materialized (
        select n, namespace, coalesce(aggregate_type, '') as aggregate_type, aggregate_id
        from unnest(p_namespaces, p_aggregate_types, p_aggregate_ids) with ordinality as u (namespace, aggregate_type, aggregate_id, n)
        where case jsonb_typeof(p_options) when 'array' then p_options -> (n - 1)::integer else p_options end -> 'aggregateSequence' = 'true'
          and namespace <> '' and aggregate_id <> ''
          and octet_length(namespace) + octet_length(aggregate_id) + coalesce(octet_length(aggregate_type), 0) <= 2600
    ),
    counters as (
        insert into outbox_aggregate_sequences as s (namespace, aggregate_type, aggregate_id, last)
        select namespace, aggregate_type, aggregate_id, count(*)
        from requested
        group by namespace, aggregate_type, aggregate_id
        order by namespace, aggregate_type, aggregate_id
        on conflict (namespace, aggregate_type, aggregate_id) do update set last = s.last + excluded.last
        returning *
    ),
    numbered as (
        select n, last + 1 - row_number() over (partition by namespace, aggregate_type, aggregate_id order by n desc) as sequence
        from requested
        join counters using (namespace, aggregate_type, aggregate_id)
    )
    select array_agg(sequence order by n)
    from generate_series(1, cardinality(p_namespaces)) as n
    left join numbered using (n)
$$;

-- enqueue_renumber takes back the numbers of events that were there before: those behind them move up.
create function enqueue_renumber(
    p_namespaces text[], p_aggregate_types text[], p_aggregate_ids text[], p_ids uuid[], p_added boolean[], p_sequences bigint[]
) returns void
language sql
as $$
    with numbered as materialized (
        select id, namespace, coalesce(aggregate_type, '') as aggregate_type, aggregate_id, added, sequence,
            count(*) filter (where not added) over (partition by namespace, coalesce(aggregate_type, ''), aggregate_id order by n) as free
        from unnest(p_namespaces, p_aggregate_types, p_aggregate_ids, p_ids, p_added, p_sequences)
            with ordinality as u (namespace, aggregate_type, aggregate_id, id, added, sequence, n)
        where sequence is not null
    ),
    counters as (
        update outbox_aggregate_sequences as s
        set last = last - unused.numbers
        from (select namespace, aggregate_type, aggregate_id, count(*) as numbers from numbered where not added group by 1, 2, 3) as unused
        where (s.namespace, s.aggregate_type, s.aggregate_id) = (unused.namespace, unused.aggregate_type, unused.aggregate_id)
    )
    update outbox_events as e
    set aggregate_sequence = numbered.sequence - free
    from numbered
    where e.id = numbered.id and added and free > 0
$$;

-- enqueue adds an event in the caller's transaction, and returns its id and whether it is new.
--
-- With a dedupe key that is already there, the id is that of the row that stands. With a p_id that is
-- already there, in the same namespace and topic, it is that one; elsewhere it is an error.
--
-- With p_lock_key, transactions that enqueue for one key take turns, each until it commits: the order
-- of seq is then the order of their commits. Call it last in the transaction, so that others wait for
-- little more than the commit. The lock is one of 1,024 slots by the key's hash: a key shares its turn
-- with one key in a thousand, and a transaction holds at most 1,024 locks. (A lock for each key can fill the
-- server's lock table, and then no client can even connect.)
--
-- p_options are maxAttempts, the retry budget of this row, retry, its backoff, and aggregateSequence, true for the
-- next number of the event's aggregate: transactions that number events of one aggregate take turns, each until it
-- ends. Later versions may know more names: so the arguments never change.
--
-- It runs with the owner's rights, so that a producer needs no right on the table and no row gets
-- in unchecked.
create function enqueue(
    p_namespace      text,
    p_topic          text,
    p_payload        jsonb,
    p_event_type     text     default null,
    p_aggregate_type text     default null,
    p_aggregate_id   text     default null,
    p_partition_key  text     default null,
    p_tenant_id      uuid     default null,
    p_dedupe_key     text     default null,
    p_headers        jsonb    default '{}',
    p_delay          interval default '0',
    p_id             uuid     default null,
    p_max_bytes      integer  default 1048576,
    p_lock_key       boolean  default false,
    p_options        jsonb    default '{}',
    out id           uuid,
    out inserted     boolean
)
language plpgsql
security definer
set search_path from current
as $$
#variable_conflict use_column
declare
    v_max_attempts smallint;
    v_retry        jsonb;
    v_sequence     bigint;
begin
    -- What is plainly right is not looked at again. The condition is short because a function's expressions
    -- are made ready once a transaction, which costs more than to compute them. 280 bytes is a row of short texts.
    if (p_headers = '{}' and p_options = '{}' and p_delay >= '0' and p_max_bytes > 0 and p_dedupe_key is null and p_lock_key is false
            and p_namespace is not null and p_topic is not null and p_payload is not null
            and pg_column_size(array[p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id, p_partition_key]) <= 280
            and ('' = any (array[p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id, p_partition_key])) is not true
        ) is not true then
        p_options := coalesce(p_options, '{}');
        perform enqueue_check('', p_namespace, p_topic, p_payload is null, p_event_type, p_aggregate_type, p_aggregate_id,
            p_partition_key, p_tenant_id, p_dedupe_key, p_headers, p_delay, p_lock_key, p_options);
        p_event_type     := nullif(p_event_type, '');
        p_aggregate_type := nullif(p_aggregate_type, '');
        p_aggregate_id   := nullif(p_aggregate_id, '');
        p_partition_key  := nullif(p_partition_key, '');
        p_dedupe_key     := nullif(p_dedupe_key, '');
        p_headers        := jsonb_strip_nulls(coalesce(p_headers, '{}')); -- a null makes no header
        p_delay          := coalesce(p_delay, '0');
        p_max_bytes      := coalesce(p_max_bytes, 1048576);
        v_max_attempts   := (p_options ->> 'maxAttempts')::smallint;
        v_retry          := p_options -> 'retry';
        if p_lock_key then -- before the row gets its seq; the hash is that of key_hash
            perform pg_advisory_xact_lock(1869968482, (hashtextextended(coalesce(p_partition_key, p_aggregate_id),
                hashtextextended(p_topic, hashtextextended(p_namespace, 0))) & 1023)::integer);
        end if;
        if p_options -> 'aggregateSequence' = 'true' then -- before the row gets its seq, too
            v_sequence := (enqueue_number(array[p_namespace], array[p_aggregate_type], array[p_aggregate_id], p_options))[1];
        end if;
    end if;

    -- A UUID version 7: the time in milliseconds, the version, and the rest of a random one.
    if p_id is null then
        p_id := encode(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint << 16 | 28672)
            || substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid;

        -- Without a dedupe key nothing can conflict, and an insert that need not look for conflicts is cheaper.
        if p_dedupe_key is null then
            insert into outbox_events (id, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, retry, headers, payload, next_attempt_at)
            values (p_id, v_sequence, v_max_attempts, p_tenant_id, p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id,
                p_partition_key, v_retry, p_headers, p_payload, now() + p_delay)
            returning outbox_events.id, size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes into id, inserted;
            if not inserted then
                perform enqueue_check_sizes(array[p_payload], p_max_bytes, '');
            end if;
            return;
        end if;
    end if;

    loop
        insert into outbox_events (id, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
        values (p_id, v_sequence, v_max_attempts, p_tenant_id, p_namespace, p_topic, p_event_type, p_aggregate_type, p_aggregate_id,
            p_partition_key, p_dedupe_key, v_retry, p_headers, p_payload, now() + p_delay)
        on conflict do nothing
        returning outbox_events.id, size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes into id, inserted;
        if inserted then
            return;
        elsif not inserted then
            perform enqueue_check_sizes(array[p_payload], p_max_bytes, '');
        end if;

        inserted := false;
        select e.id into id from outbox_events as e
            where e.namespace = p_namespace and e.topic = p_topic and e.dedupe_key = p_dedupe_key;
        exit when found;
        select e.id into id from outbox_events as e where e.id = p_id and e.namespace = p_namespace and e.topic = p_topic;
        exit when found;
        if exists (select from outbox_events as e where e.id = p_id) then
            raise exception 'outbox: the id % is that of an event of another namespace or topic', p_id
                using errcode = 'unique_violation', hint = 'Make a new id for each event, or leave out p_id.';
        end if; -- else retention has just removed the row that stood: insert again
    end loop;
    if v_sequence is not null then -- no event has the number: the next one gets it
        update outbox_aggregate_sequences as s set last = last - 1
            where s.namespace = p_namespace and s.aggregate_type = coalesce(p_aggregate_type, '') and s.aggregate_id = p_aggregate_id;
    end if;
end
$$;

revoke all on function enqueue from public;

-- enqueue_batch adds events in their order, and returns a row for each in the order of the arrays, as enqueue does.
-- Element n of each array is of event n. An array that is null or empty means the default for all;
-- any other has as many elements as p_payloads, and a null in it means the default. p_options is an object
-- for all, or an array of one for each. An error names the event by its number, from 1, and then none is added.
--
-- Events with a lock lock their slots in ascending order, so that two batches never wait for each other
-- in a circle; the events keep their order.
create function enqueue_batch(
    p_namespaces      text[],
    p_topics          text[],
    p_payloads        jsonb[],
    p_event_types     text[]     default null,
    p_aggregate_types text[]     default null,
    p_aggregate_ids   text[]     default null,
    p_partition_keys  text[]     default null,
    p_tenant_ids      uuid[]     default null,
    p_dedupe_keys     text[]     default null,
    p_headers         jsonb[]    default null,
    p_delays          interval[] default null,
    p_ids             uuid[]     default null,
    p_max_bytes       integer    default 1048576,
    p_lock_keys       boolean[]  default null,
    p_options         jsonb      default '{}'
) returns table (id uuid, inserted boolean)
language plpgsql
security definer
set search_path from current
as $$
#variable_conflict use_column
declare
    v_events  integer := coalesce(cardinality(p_payloads), 0);
    v_options boolean := coalesce(p_options <> '{}', false);
    v_each    boolean := coalesce(jsonb_typeof(p_options) = 'array', false);
    -- For ids of version 7: the time in milliseconds, a count within it, so that they are in the events' order,
    -- and 62 bits made of the number and one random one.
    v_ms      bigint  := extract(epoch from clock_timestamp()) * 1000;
    v_seed    bigint  := hashtextextended(gen_random_uuid()::text, 0);
    v_ids     uuid[];
    v_new     jsonb; -- the ids that were added, as names
    v_stands  uuid[];
    v_fresh   boolean[];
    v_other   bigint;
    v_numbers bigint[];
begin
    if exists (select from unnest(array[cardinality(p_namespaces), cardinality(p_topics), cardinality(p_event_types),
            cardinality(p_aggregate_types), cardinality(p_aggregate_ids), cardinality(p_partition_keys),
            cardinality(p_tenant_ids), cardinality(p_dedupe_keys), cardinality(p_headers), cardinality(p_delays),
            cardinality(p_ids), cardinality(p_lock_keys), case when v_each then jsonb_array_length(p_options) end]) as n
            where n not in (0, v_events)) then
        raise exception 'outbox: the arrays have not one element for each of the % payloads', v_events
            using errcode = 'invalid_parameter_value', hint = 'Give arrays of one length, or null for the default.';
    end if;
    p_max_bytes := coalesce(p_max_bytes, 1048576);
    p_options := coalesce(p_options, '{}');

    if true = any (p_lock_keys) then
        perform pg_advisory_xact_lock(1869968482, slot)
        from (select distinct (hashtextextended(key, hashtextextended(topic, hashtextextended(namespace, 0))) & 1023)::integer as slot
            from (select namespace, topic, coalesce(nullif(partition, ''), nullif(aggregate, '')) as key
                from unnest(p_namespaces, p_topics, p_partition_keys, p_aggregate_ids, p_lock_keys)
                    as u (namespace, topic, partition, aggregate, lock)
                where lock) as k
            where key is not null
            order by slot) as s;
    end if;
    if v_options and p_options @? '$.aggregateSequence ? (@ == true)' then -- of the object, or of any in the array
        v_numbers := enqueue_number(p_namespaces, p_aggregate_types, p_aggregate_ids, p_options);
    end if;

    -- Without dedupe keys and ids of the caller nothing can conflict: an insert that need not look for
    -- conflicts is cheaper, and every event is new.
    if coalesce(p_ids, '{}') = '{}' and coalesce(p_dedupe_keys, '{}') = '{}' then
        return query
        insert into outbox_events (id, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
            partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
        select encode(int8send((v_ms + (n - 1 >> 12)) << 16 | 28672 | (n - 1 & 4095))
                || int8send(hashint8extended(n, v_seed) & 4611686018427387903 | -9223372036854775808), 'hex')::uuid, sequence,
            case when v_options then (case when v_each then p_options -> (n - 1)::integer else p_options end ->> 'maxAttempts')::smallint end,
            tenant_id, namespace, topic, nullif(event_type, ''), nullif(aggregate_type, ''), nullif(aggregate_id, ''),
            nullif(partition_key, ''), nullif(dedupe_key, ''),
            case when v_options then case when v_each then p_options -> (n - 1)::integer else p_options end -> 'retry' end,
            coalesce(jsonb_strip_nulls(headers), '{}'), payload, now() + coalesce(delay, '0')
        from unnest(p_namespaces, p_topics, p_payloads, p_event_types, p_aggregate_types, p_aggregate_ids, p_partition_keys,
            p_tenant_ids, p_dedupe_keys, p_headers, p_delays, p_lock_keys, v_numbers) with ordinality as u (namespace, topic, payload,
            event_type, aggregate_type, aggregate_id, partition_key, tenant_id, dedupe_key, headers, delay, lock, sequence, n)
        where case when namespace <> '' and topic <> '' and payload is not null and not v_options and lock is not true
                and octet_length(namespace) <= 255 and octet_length(topic) <= 255
                and coalesce(greatest(octet_length(event_type), octet_length(aggregate_type), octet_length(aggregate_id),
                    octet_length(partition_key), octet_length(dedupe_key)), 0) <= 1024
                and coalesce(headers = '{}' or octet_length(headers::text) <= 65536 and jsonb_typeof(headers) = 'object'
                    and not headers ? '' and not headers @? 'strict $.* ? (@.type() != "string")', true)
                and coalesce(delay >= '0', true)
                and coalesce(starts_with(dedupe_key, tenant_id || '/') or dedupe_key = '', true)
            then true
            else enqueue_check(format('event %s: ', n), namespace, topic, payload is null, event_type, aggregate_type, aggregate_id,
                partition_key, tenant_id, dedupe_key, headers, delay, lock, case when v_each
                then coalesce(nullif(p_options -> (n - 1)::integer, 'null'), '{}') else p_options end) end
        returning outbox_events.id, case when size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes then true
            else enqueue_check_sizes(p_payloads, p_max_bytes, 'event %s: ') end;
        return;
    end if;

    select array_agg(coalesce(p_ids[n], encode(int8send((v_ms + (n - 1 >> 12)) << 16 | 28672 | (n - 1 & 4095))
        || int8send(hashint8extended(n, v_seed) & 4611686018427387903 | -9223372036854775808), 'hex')::uuid) order by n) into v_ids from generate_series(1, v_events) as n;
    v_stands := array_fill(null::uuid, array[v_events]);
    v_fresh := array_fill(false, array[v_events]);
    loop
        with added as (
            insert into outbox_events (id, aggregate_sequence, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type, aggregate_id,
                partition_key, dedupe_key, retry, headers, payload, next_attempt_at)
            select candidate, sequence,
                case when v_options then (case when v_each then p_options -> (n - 1)::integer else p_options end ->> 'maxAttempts')::smallint end,
                tenant_id, namespace, topic, nullif(event_type, ''), nullif(aggregate_type, ''), nullif(aggregate_id, ''),
                nullif(partition_key, ''), nullif(dedupe_key, ''),
                case when v_options then case when v_each then p_options -> (n - 1)::integer else p_options end -> 'retry' end,
                coalesce(jsonb_strip_nulls(headers), '{}'), payload, now() + coalesce(delay, '0')
            from unnest(p_namespaces, p_topics, p_payloads, p_event_types, p_aggregate_types, p_aggregate_ids, p_partition_keys,
                p_tenant_ids, p_dedupe_keys, p_headers, p_delays, p_lock_keys, v_numbers, v_ids, v_stands) with ordinality as u (namespace, topic, payload,
                event_type, aggregate_type, aggregate_id, partition_key, tenant_id, dedupe_key, headers, delay, lock, sequence, candidate, stands, n)
            where stands is null and case when namespace <> '' and topic <> '' and payload is not null and not v_options and lock is not true
                    and octet_length(namespace) <= 255 and octet_length(topic) <= 255
                    and coalesce(greatest(octet_length(event_type), octet_length(aggregate_type), octet_length(aggregate_id),
                        octet_length(partition_key), octet_length(dedupe_key)), 0) <= 1024
                    and coalesce(headers = '{}' or octet_length(headers::text) <= 65536 and jsonb_typeof(headers) = 'object'
                        and not headers ? '' and not headers @? 'strict $.* ? (@.type() != "string")', true)
                    and coalesce(delay >= '0', true)
                    and coalesce(starts_with(dedupe_key, tenant_id || '/') or dedupe_key = '', true)
                then true
                else enqueue_check(format('event %s: ', n), namespace, topic, payload is null, event_type, aggregate_type, aggregate_id,
                    partition_key, tenant_id, dedupe_key, headers, delay, lock, case when v_each
                    then coalesce(nullif(p_options -> (n - 1)::integer, 'null'), '{}') else p_options end) end
            on conflict do nothing
            returning outbox_events.id, case when size_bytes <= p_max_bytes or octet_length(payload::text) <= p_max_bytes then true
                else enqueue_check_sizes(p_payloads, p_max_bytes, 'event %s: ') end as small
        )
        select coalesce(jsonb_object_agg(added.id, true) filter (where small), '{}') into v_new from added;

        -- The first event with an id that was added is new. Of the others, a row with the key stands, or one with the id.
        select array_agg(coalesce(u.stands, case when u.is_new then u.candidate end, by_key.id, by_id.id) order by n),
            array_agg(u.fresh or u.is_new order by n),
            min(n) filter (where by_key.id is null and not by_id.same)
        into v_stands, v_fresh, v_other
        from (select *, stands is null and v_new ? candidate::text and row_number() over (partition by candidate order by n) = 1 as is_new
            from unnest(v_ids, v_stands, v_fresh, p_namespaces, p_topics, p_dedupe_keys)
                with ordinality as e (candidate, stands, fresh, namespace, topic, dedupe_key, n)) as u
        left join lateral (select e.id from outbox_events as e where u.stands is null and not u.is_new
            and e.namespace = u.namespace and e.topic = u.topic and e.dedupe_key = u.dedupe_key limit 1) as by_key on true
        left join lateral (select e.id, e.namespace = u.namespace and e.topic = u.topic as same from outbox_events as e
            where u.stands is null and not u.is_new and e.id = u.candidate limit 1) as by_id on true;
        if v_other is not null then
            raise exception 'outbox: event %: the id % is that of an event of another namespace or topic', v_other, v_ids[v_other]
                using errcode = 'unique_violation', hint = 'Make a new id for each event, or leave out p_ids.';
        end if;
        exit when array_position(v_stands, null) is null; -- else retention has just removed a row that stood: insert again
    end loop;
    if v_numbers is not null and false = any (v_fresh) then
        perform enqueue_renumber(p_namespaces, p_aggregate_types, p_aggregate_ids, v_stands, v_fresh, v_numbers);
    end if;
    return query select u.stands, u.fresh from unnest(v_stands, v_fresh) with ordinality as u (stands, fresh, n) order by n;
end
$$;

revoke all on function enqueue_batch from public;
revoke all on function enqueue_check from public;
revoke all on function enqueue_number from public;
revoke all on function enqueue_renumber from public;
revoke all on function enqueue_check_sizes from public;
revoke all on function enqueue_retry_problem from public;
