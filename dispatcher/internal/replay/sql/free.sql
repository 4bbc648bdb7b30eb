-- The condition that no open replay has claimed a dead letter.
not coalesce(outbox.outbox_replay_claims(l.replay_id, l.replay_state), false)
