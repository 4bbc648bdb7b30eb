-- Skips the items of a key whose earlier event died again: the order would be broken.
-- $1 operation.
update outbox.outbox_replay_items as item
set state = 'skipped', skipped = 'earlier_died', at = now()
where item.replay_id = $1::uuid
  and item.state = 'waiting'
  and item.key_hash is not null
  and exists (
      select from outbox.outbox_replay_items as before
      where before.replay_id = item.replay_id and before.key_hash = item.key_hash and before.seq < item.seq
        and before.state = 'died'
  )
