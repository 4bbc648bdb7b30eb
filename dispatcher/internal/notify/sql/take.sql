-- Takes notifications that are due: for a time no other process takes them. Those of events dead for too long are given up.
-- $1 namespace; $2 topics, none for all; $3 how many; $4 for how long; $5 the age at which a dead letter is given up.
with due as materialized (
    select id
    from outbox.outbox_dead_letters
    where namespace = $1::text
      and notify_at <= now()
      and (coalesce(cardinality($2::text[]), 0) = 0 or topic = any ($2::text[]))
    order by notify_at
    limit $3::integer
    for update skip locked
)
update outbox.outbox_dead_letters
set notify_at = case when dead_at < now() - $5::interval then null else now() + $4::interval end,
    notify_attempts = coalesce(notify_attempts, 0) + case when dead_at < now() - $5::interval then 0 else 1 end
where id = any (array(select id from due))
returning notify_at is null as given_up, now(), notify_attempts, id, event_id, fingerprint, topic, coalesce(seq, 0),
    coalesce(event_type, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), tenant_id, reason, class, code, place,
    coalesce(error, ''), attempts, dead_at
