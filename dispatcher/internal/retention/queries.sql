-- name: state
-- Reads a sweep. No row means that it never ran. One that ended more than a minute from now did so by a clock that was ahead,
-- and is due (CONTRACT C-3).
-- $1 its name.
select pages, position, coalesce(began_at is not null, false), ended_at, next_run, seconds, delivered, dead, expired, dead_letters, withdrawn,
       next_run <= now() or began_at is not null or coalesce(ended_at, next_run) > now() + interval '1 minute' as due
from outbox.outbox_sweeps
where name = $1::text

-- name: take
-- Takes the lease of all sweeps, or keeps it: a row for whoever has it now. A lease that is longer than one can be, and a
-- minute, was given by a clock that was ahead, and is over.
-- $1 worker; $2 for how long.
insert into outbox.outbox_sweeps as sweep (name, holder, held_until)
values ('retention', $1::uuid, now() + $2::interval)
on conflict (name) do update
set holder = excluded.holder, held_until = excluded.held_until
where sweep.holder is null or sweep.holder = excluded.holder or sweep.held_until not between now() and now() + $2::interval + interval '1 minute'
returning true

-- name: leave
-- Gives the lease back.
-- $1 worker.
update outbox.outbox_sweeps set holder = null, held_until = null
where name = 'retention' and holder = $1::uuid

-- name: shorten
-- Notes a shorter age of delivered rows before the next run, since rows may go that soon from now on: a replay reads it. A longer
-- one holds from the next run on.
-- $1 name; $2 age of delivered rows.
update outbox.outbox_sweeps set delivered_after = $2::interval where name = $1::text and delivered_after > $2::interval

-- name: begin
-- Begins a run, or continues the one that another worker has begun.
-- $1 name; $2 namespace, empty for all; $3 age of delivered rows.
insert into outbox.outbox_sweeps as sweep (name, namespace, delivered_after, began_at, pages)
values ($1::text, $2::text, $3::interval, now(), pg_relation_size('outbox.outbox_events') / current_setting('block_size')::bigint)
on conflict (name) do update
set began_at = coalesce(sweep.began_at, excluded.began_at),
    pages = excluded.pages, namespace = excluded.namespace, delivered_after = excluded.delivered_after,
    position = case when sweep.began_at is null then 0 else sweep.position end
returning pages, position

-- name: progress
-- Writes the progress of a run, and what it has removed since the last time. The run of a worker that lost the
-- lease adds only what it removed: the position is another's.
-- $1 name; $2 worker; $3 position; $4..$8 removed: delivered, dead, expired, dead letters, withdrawn.
update outbox.outbox_sweeps as sweep
set position = case when held.mine then $3::bigint else position end,
    delivered = delivered + $4::bigint, dead = dead + $5::bigint, expired = expired + $6::bigint, dead_letters = dead_letters + $7::bigint,
    withdrawn = withdrawn + $8::bigint
from (select exists (select from outbox.outbox_sweeps where name = 'retention' and holder = $2::uuid and held_until >= now()) as mine) as held
where name = $1::text

-- name: end
-- Ends a run.
-- $1 name; $2 time until the next one.
update outbox.outbox_sweeps
set ended_at = now(), seconds = extract(epoch from now() - began_at), began_at = null, position = 0, next_run = now() + $2::interval
where name = $1::text and began_at is not null

-- name: delivered
-- Removes delivered, withdrawn and expired rows of some pages, a bounded number, and none that is locked (CONTRACT C-60).
-- It needs no index: the pages are read by their numbers.
-- $1 first page, and $2 the page after the last, as tids; $3 age; $4 namespace, empty for all; $5 topics, none for
-- all; $6 how many rows.
with old as materialized (
    select ctid as row
    from outbox.outbox_events
    where ctid >= $1::text::tid and ctid < $2::text::tid
      and status in ('delivered', 'withdrawn', 'expired')
      and updated_at < now() - $3::interval
      and ($4::text = '' or namespace = $4::text)
      and (coalesce(cardinality($5::text[]), 0) = 0 or topic = any ($5::text[]))
    limit $6::integer
    for update skip locked
),
gone as (
    delete from outbox.outbox_events where ctid = any (array(select row from old)) and status in ('delivered', 'withdrawn', 'expired')
      and (select set_config('outbox.removal', 'retention', true)) is not null
    returning status
)
select count(*) filter (where status = 'delivered'), count(*) filter (where status <> 'delivered') from gone

-- name: dead_letters
-- Reads some dead letters in the order of their ids: the last id, how many there are, and the events of those
-- that are old.
-- $1 the id after which to begin; $2 how many; $3 age of resolved ones; $4 age of unresolved ones,
-- null for never; $5 namespace, empty for all; $6 topics, none for all.
with read as materialized (
    select * from outbox.outbox_dead_letters where id > $1::bigint order by id limit $2::integer
)
select coalesce(max(id), 0), count(*), coalesce(array_agg(distinct event_id) filter (
    where (resolved_at < now() - $3::interval or resolution is null and dead_at < now() - $4::interval)
      and ($5::text = '' or namespace = $5::text)
      and (coalesce(cardinality($6::text[]), 0) = 0 or topic = any ($6::text[]))), '{}')
from read

-- name: lock
-- Locks rows of events, as far as they are neither live nor locked by another, and returns their ids and those
-- of events that have no row. What is locked stays as it is until the transaction ends.
-- $1 ids.
with there as materialized (
    select id from outbox.outbox_events where id = any ($1::uuid[])
),
locked as materialized (
    select id from outbox.outbox_events where id = any ($1::uuid[]) and status in ('delivered', 'dead', 'withdrawn', 'expired') for update skip locked
)
select id from unnest($1::uuid[]) as wanted (id)
where id in (select id from locked) or id not in (select id from there)

-- name: resolved
-- Removes the dead letters of events of which each dead letter was resolved long ago, and the rows of these events that
-- are dead. A dead letter that is open, and so one that blocks a key, stays with all others of its event, and so does one of
-- a replay that has not read its outcome yet.
-- $1 ids of events that are locked, or have no row; $2 age.
with old as materialized (
    select id, event_id from outbox.outbox_dead_letters
    where event_id = any ($1::uuid[]) and resolved_at < now() - $2::interval and coalesce(replay_state, '') not in ('requeued', 'failing')
    for update skip locked
),
whole as materialized (
    select event_id from outbox.outbox_dead_letters
    where event_id = any ($1::uuid[])
    group by event_id
    having count(*) = (select count(*) from old where old.event_id = outbox_dead_letters.event_id)
),
rows as (
    delete from outbox.outbox_events where id = any (array(select event_id from whole)) and status = 'dead'
      and (select set_config('outbox.removal', 'retention', true)) is not null
    returning 1
),
dead_letters as (
    delete from outbox.outbox_dead_letters
    where id = any (array(select id from old where event_id in (select event_id from whole)))
      and (select set_config('outbox.removal', 'retention', true)) is not null
    returning 1
)
select (select count(*) from rows), (select count(*) from dead_letters)

-- name: expired
-- Resolves the dead letters of events that are unresolved for long, and removes the rows of these events
-- that are dead (deadUnresolved), but for those that a replay has claimed. A resolution frees the key of the event. Where dispatchers have onDead Block
-- only a person does that: such a dead letter stays open, and so does one with a key of a topic that no
-- dispatcher serves, since its onDead is unknown.
-- The resolution is compared by coalesce, so that the dead letters are looked up by their events: the planner of PostgreSQL 18,
-- which knows nothing of a table that is new, would read all open dead letters here.
-- $1 ids of events that are locked, or have no row; $2 age.
with old as materialized (
    select id, event_id from outbox.outbox_dead_letters as dead_letter
    where event_id = any ($1::uuid[]) and coalesce(resolution, '') = '' and dead_at < now() - $2::interval
      and not coalesce(outbox.outbox_replay_claims(replay_id, replay_state), false)
      and (key_hash is null or (
          select bool_and(not blocks) from outbox.outbox_workers as worker
          where worker.namespace = dead_letter.namespace and (topics = '{}' or dead_letter.topic = any (topics))
      ))
    for update skip locked
),
whole as materialized (
    select event_id from outbox.outbox_dead_letters
    where event_id = any ($1::uuid[]) and coalesce(resolution, '') = ''
    group by event_id
    having count(*) = (select count(*) from old where old.event_id = outbox_dead_letters.event_id)
),
rows as (
    delete from outbox.outbox_events where id = any (array(select event_id from whole)) and status = 'dead'
      and (select set_config('outbox.removal', 'retention', true)) is not null
    returning 1
),
dead_letters as (
    update outbox.outbox_dead_letters
    set resolution = 'expired', resolved_at = now(), resolved_by = 'retention'
    where id = any (array(select id from old where event_id in (select event_id from whole)))
    returning 1
)
select (select count(*) from rows), (select count(*) from dead_letters)

-- name: replays
-- Reads the outcomes of replays that no process watches, and removes operations that finished long ago: how many it removed.
-- $1 namespace, empty for all; $2 age.
select outbox.outbox_replay_sweep($1::text, $2::interval)

-- name: journal
-- Removes days of the journal that are older than its own retention: how many. When there is none, it makes those
-- that come. The owner has set that retention, and the function has the owner's rights.
select outbox.outbox_journal_keep()
