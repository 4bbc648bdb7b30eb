-- oldest-reader: 1
--
-- The tables of the outbox: events, dead letters, workers and sweeps.
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

    -- From here on, what transitions change. Fixed-width columns first, so that nothing is padded. What the others never
    -- change, and a replay does, is the first of them: it adds nothing to their WAL.
    first_due_at    timestamptz,
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
comment on column outbox_events.first_due_at is 'When the row was due first: its producer delayed it until then, or a person replayed it then. Null: at created_at.';
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
    added          bigint not null default 0,

    constraint outbox_aggregate_sequences_pkey primary key (namespace, aggregate_type, aggregate_id)
) with (
    -- Room for the next version of each row, so that a number touches no index.
    fillfactor = 50
);

comment on table outbox_aggregate_sequences is 'One row per aggregate whose events are numbered: enqueue with the option aggregateSequence.';
comment on column outbox_aggregate_sequences.aggregate_type is 'Empty for events without one.';
comment on column outbox_aggregate_sequences.last is 'The number of its last event. It outlives the event: a row that is removed begins at 1 again.';
comment on column outbox_aggregate_sequences.added is 'How many numbers the insert that made the row gave out; 0 when adopt back made it. enqueue and the adoption''s trigger distinguish these by it from the numbers that were there.';

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

-- The dispatchers' processes that run. Each updates its row every few seconds. A process that was not seen for a
-- while is gone; another removes its row.
create table outbox_workers (
    worker     uuid        not null,
    dispatcher text        not null,
    namespace  text        not null,
    topics     text[]      not null default '{}',
    version    text,
    ordered    boolean     not null default false,
    blocks     boolean     not null default false,
    paused     boolean     not null default false,
    paused_topics jsonb    not null default '{}',
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now(),
    delivered_5m bigint    not null default 0,
    failed_5m    bigint    not null default 0,
    delivered_1h bigint    not null default 0,
    failed_1h    bigint    not null default 0,
    live_until timestamptz not null default now(),
    part       double precision not null default 0,

    constraint outbox_workers_pkey primary key (worker)
);

comment on table outbox_workers is 'One row per process of a dispatcher that runs: who shares the work, and who serves which topics.';
comment on column outbox_workers.worker is 'What outbox_events.locked_by names.';
comment on column outbox_workers.topics is 'The topics that it serves. Empty: all of its namespace.';
comment on column outbox_workers.ordered is 'Whether its events wait for earlier ones of their key: ordering Key.';
comment on column outbox_workers.blocks is 'Whether its keys wait behind a dead event: onDead Block.';
comment on column outbox_workers.paused is 'Whether it claims nothing: it has the state Paused, or it is about to end.';
comment on column outbox_workers.paused_topics is 'Why it claims nothing, or little, of a topic: {"orders": "..."}. An empty name is all topics.';
comment on column outbox_workers.seen_at is 'When it last updated this row, on the database''s clock.';
comment on column outbox_workers.delivered_5m is 'The events that it marked delivered in the 5 minutes before seen_at.';
comment on column outbox_workers.failed_5m is 'Its deliveries that failed in the 5 minutes before seen_at.';
comment on column outbox_workers.delivered_1h is 'The events that it marked delivered in the hour before seen_at.';
comment on column outbox_workers.failed_1h is 'Its deliveries that failed in the hour before seen_at.';
comment on column outbox_workers.live_until is 'When its part is free for others, unless it is seen again.';
comment on column outbox_workers.part is 'The part of its dispatcher''s rate limits that it may use, from 0 to 1.';

-- How far each tenant has used its rate, of dispatchers that limit it: the time from which it has used nothing. A
-- claim locks the rows of the tenants that it visits, and leaves those alone that another one has locked.
create table outbox_rates (
    namespace  text        not null,
    dispatcher text        not null,
    topic      text        not null,
    tenant     uuid        not null,
    used_until timestamptz not null,

    constraint outbox_rates_pkey primary key (namespace, dispatcher, topic, tenant)
) with (
    fillfactor = 50 -- room for the next version of each row, so that an update touches no index
);

comment on table outbox_rates is 'One row per tenant of a topic whose rate a dispatcher limits.';
comment on column outbox_rates.tenant is 'The events'' tenant_id; zeros for events without one.';
comment on column outbox_rates.used_until is 'From when it has used nothing of its rate, on the database''s clock.';

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
