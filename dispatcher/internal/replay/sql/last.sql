-- The condition that a dead letter is the last of its event: an earlier one that is still open was passed by.
not exists (
    select from outbox.outbox_dead_letters as later
    where later.event_id = l.event_id and later.id > l.id
)
