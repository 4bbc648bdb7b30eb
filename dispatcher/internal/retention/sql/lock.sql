-- Locks rows of events, as far as they are neither live nor locked by another, and returns their ids and those
-- of events that have no row. What is locked stays as it is until the transaction ends.
-- $1 ids.
with there as materialized (
    select id from outbox.outbox_events where id = any ($1::uuid[])
),
locked as materialized (
    select id from outbox.outbox_events where id = any ($1::uuid[]) and status in ('delivered', 'dead') for update skip locked
)
select id from unnest($1::uuid[]) as wanted (id)
where id in (select id from locked) or id not in (select id from there)
