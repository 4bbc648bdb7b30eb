-- Gives up what waits of a replay.
-- $1 replay; $2 why.
select outbox.outbox_replay_stop($1::uuid, $2::text)
