-- Does with dead letters what the replay is for, under lock, and returns how many had their turn.
-- $1 replay; $2 ids of the dead letters. The function's text says what is certain; it is all that the login may
-- change of events and dead letters.
select outbox.outbox_resolve($1::uuid, $2::bigint[])
