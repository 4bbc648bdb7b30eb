-- Notes an outcome.
-- $1 operation; $2 ids of the letters; $3 outcome.
update outbox.outbox_replay_items
set state = $3::text, at = now()
where replay_id = $1::uuid and letter_id = any ($2::bigint[])
