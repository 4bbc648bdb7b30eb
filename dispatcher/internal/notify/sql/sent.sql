-- Marks notifications that the address has accepted.
-- $1 ids of the dead letters.
update outbox.outbox_dead_letters
set notify_at = null, notified_at = now()
where id = any ($1::bigint[])
