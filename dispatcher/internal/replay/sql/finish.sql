-- Notes that the last outcome is known, or was skipped, and the counts, which stay when retention removes the set.
-- $1 replay.
update outbox.outbox_replays as replay
set finished_at = now(),
    (delivered, dead_again, discarded) = (
        select count(*) filter (where state = 'delivered'), count(*) filter (where state = 'dead_again'), count(*) filter (where state = 'discarded')
        from outbox.outbox_replay_items where replay_id = $1::uuid
    ),
    skipped = (
        select jsonb_object_agg(reason, n) from (
            select skipped as reason, count(*) as n from outbox.outbox_replay_items
            where replay_id = $1::uuid and state = 'skipped'
            group by skipped
        ) as counted
    )
where id = $1::uuid and finished_at is null
  and not exists (select from outbox.outbox_replay_items where replay_id = $1::uuid and state = 'waiting')
  and not exists (select from outbox.outbox_replay_items where replay_id = $1::uuid and state = 'requeued')
