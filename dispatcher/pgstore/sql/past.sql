-- The newest rows of any status, by their ids, which rise with time. Nothing is locked.
-- $1 namespace; $2 topics, null for all; $3 the earliest created_at, null for any; $4 and $5 ids to look at, from
-- below $4 down to $5; $6 how many rows to look at.
select id, namespace = $1::text and coalesce(topic = any ($2::text[]), true) and coalesce(created_at >= $3::timestamptz, true) as wanted,
       size_bytes
from outbox.outbox_events
where id < $4::uuid and id >= $5::uuid
order by id desc
limit $6::integer
