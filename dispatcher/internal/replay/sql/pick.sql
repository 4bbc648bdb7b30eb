-- Chooses the next items of a replay that may go, in the order of insertion. The caller holds the replay's
-- row, so no other process chooses of them.
-- $1 replay; $2 how many; $3 whether the order per key is kept.
--
-- With order, an item goes when its key has no earlier one that waits or whose outcome is open, of this
-- replay, and no earlier row at all that is live: another replay may have put it back.
select item.dead_letter_id
from outbox.outbox_replay_items as item
where item.replay_id = $1::uuid
  and item.state = 'waiting'
  and (not $3::boolean or item.key_hash is null or (
      not exists (
          select from outbox.outbox_replay_items as before
          where before.replay_id = item.replay_id and before.key_hash = item.key_hash
            and (before.seq, before.dead_letter_id) < (item.seq, item.dead_letter_id)
            and before.state in ('waiting', 'requeued')
      )
      and not exists (
          select from outbox.outbox_events as before
          where before.live and before.key_hash = item.key_hash and before.seq < item.seq
      )
  ))
order by item.seq, item.dead_letter_id
limit $2::integer
