-- name: copy
-- Copies leased events to topics, and marks them delivered, or removes them; returns those that were not held (CONTRACT C-19, C-23). Migration 0009 has what it does.
-- $1 topics; $2 ids of the rows and $3 the numbers of their leases, in the order of locking; $4 worker; $5 whether to remove them.
with done as materialized (
    select coalesce(originals, '{}') as originals from outbox.outbox_copy($1::text[], $2::uuid[], $3::bigint[], $4::uuid, $5::boolean)
)
select id, lease from unnest($2::uuid[], $3::bigint[]) as held (id, lease)
where (select cardinality(originals) from done) < cardinality($2::uuid[]) and id <> all ((select originals from done)::uuid[])

-- name: copiers
-- Lists the other dispatchers of a namespace that copy, and were seen a moment ago, paused or not.
-- $1 namespace; $2 this dispatcher.
select distinct dispatcher, topics, copies
from outbox.outbox_workers
where namespace = $1::text
  and dispatcher <> $2::text
  and copies <> '{}'
  and seen_at > now() - interval '1 minute'
order by dispatcher

-- name: copy_warnings
-- Says what is odd with the topics that a dispatcher copies to.
-- $1 namespace; $2 the dispatcher; $3 the topics.
with seen as (select * from outbox.outbox_workers where namespace = $1::text and seen_at > now() - interval '1 minute')
select format('no dispatcher delivers topic %s, so its copies wait; make one', to_json(topic))
from unnest($3::text[]) as topic
where not exists (select from seen where topics = '{}' or topic = any (topics))
union all
select distinct format('dispatcher %s copies to topic %s too; where their originals have the same dedupe key, the second copy is refused', to_json(dispatcher), to_json(topic))
from unnest($3::text[]) as topic join seen on topic = any (copies)
where dispatcher <> $2::text
