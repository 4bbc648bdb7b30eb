-- Skips what waits, since the replay was stopped.
-- $1 replay.
update outbox.outbox_replay_items
set state = 'skipped', skipped = 'stopped', at = now()
where replay_id = $1::uuid and state = 'waiting'
