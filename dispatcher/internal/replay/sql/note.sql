-- Notes an outcome.
-- $1 replay; $2 ids of the dead letters; $3 outcome.
update outbox.outbox_replay_items
set state = $3::text, at = now()
where dead_letter_id = any ($2::bigint[]) and coalesce(replay_id, $1::uuid) = $1::uuid
