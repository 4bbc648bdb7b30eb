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
