-- Puts back the next dead letters of a replay: how many had their turn.
-- $1 replay; $2 how many at most.
select outbox.outbox_replay_step($1::uuid, $2::integer)
