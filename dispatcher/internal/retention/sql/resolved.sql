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
    returning 1
)
select (select count(*) from rows), (select count(*) from dead_letters)
