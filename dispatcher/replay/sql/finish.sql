-- Notes that the last outcome is known, or was skipped.
-- $1 operation.
update outbox.outbox_replays as operation
set finished_at = now()
where id = $1::uuid and finished_at is null
  and not exists (select from outbox.outbox_replay_items where replay_id = $1::uuid and state = 'waiting')
  and not exists (select from outbox.outbox_replay_items where replay_id = $1::uuid and state = 'requeued')
