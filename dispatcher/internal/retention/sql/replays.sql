-- Reads the outcomes of replays that no process watches, and removes operations that finished long ago: how many it removed.
-- $1 namespace, empty for all; $2 age.
select outbox.outbox_replay_sweep($1::text, $2::interval)
