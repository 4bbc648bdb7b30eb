-- Skips the items of a key behind an event that died again: the order would be broken.
-- $1 operation; $2 ids of the letters whose events died again.
update outbox.outbox_replay_items as item
set state = 'skipped', skipped = 'earlier_died', at = now()
from outbox.outbox_replay_items as before
where before.replay_id = $1::uuid and before.letter_id = any ($2::bigint[])
  and item.replay_id = $1::uuid and item.state = 'waiting' and item.key_hash = before.key_hash and item.seq > before.seq
