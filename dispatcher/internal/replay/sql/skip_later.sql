-- Skips the items of a key behind an event that is dead again: the order would be broken. OFFSET 0 keeps the planner to one
-- look into the index of keys for each of them: with the state it would take the index of states.
-- $1 replay; $2 ids of the dead letters whose events are dead again.
update outbox.outbox_replay_items
set state = 'skipped', skipped = 'earlier_dead', at = now()
where coalesce(replay_id, $1::uuid) = $1::uuid and dead_letter_id = any (array(
    select later.dead_letter_id
    from (
        select key_hash, seq from outbox.outbox_replay_items
        where dead_letter_id = any ($2::bigint[]) and coalesce(replay_id, $1::uuid) = $1::uuid and key_hash is not null
        offset 0
    ) as dead
    cross join lateral (
        select dead_letter_id, state from outbox.outbox_replay_items as item
        where item.replay_id = $1::uuid and item.key_hash = dead.key_hash and item.seq > dead.seq
            and item.state in ('waiting', 'requeued')
        offset 0
    ) as later
    where later.state = 'waiting'
))
