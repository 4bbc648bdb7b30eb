-- $1, $2 the name, $3, $4 the new one: pending events whose dedupe key the new one has.
select count(*) from outbox.outbox_events as e
where live and namespace = $1 and topic = $2 and status = 'pending' and dedupe_key is not null
    and exists (select from outbox.outbox_events as o where o.namespace = $3 and o.topic = $4 and o.dedupe_key = e.dedupe_key)
