-- Reads the outcomes of what a replay has put back: whether one was new.
-- $1 replay.
select outbox.outbox_replay_observe($1::uuid)
