-- What an event is now, for a login that may not read its row whole.
-- $1 its id; $2 namespace; $3 topics, null for all.
select e.status
from outbox.outbox_events as e
where e.id = $1::uuid and e.namespace = $2::text and ($3::text[] is null or e.topic = any ($3::text[]))
