-- The records of an event in the journal, the newest first.
-- $1 its id; $2 namespace; $3 topics, null for all; $4 most records.
select r.at, r.lsn::text, r.xid::text, r.operation, coalesce(r.before, ''), coalesce(r.after, ''), coalesce(r.attempts, 0), coalesce(r.lease, 0),
       coalesce(r.worker::text, ''), r.login, coalesce(r.reason, ''), r.topic
from outbox.outbox_journal as r
where r.event_id = $1::uuid and r.namespace = $2::text and ($3::text[] is null or r.topic = any ($3::text[]))
order by r.lsn desc, r.at desc
limit $4::integer
