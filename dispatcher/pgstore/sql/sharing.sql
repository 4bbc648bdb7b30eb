-- Names the other dispatchers that were seen a moment ago, are not paused, and deliver topics of this one too: five at most.
-- $1 namespace; $2 this dispatcher; $3 its topics, none for all.
select distinct dispatcher
from outbox.outbox_workers
where namespace = $1::text
  and dispatcher <> $2::text
  and not paused
  and seen_at > now() - interval '1 minute'
  and (topics = '{}' or coalesce(cardinality($3::text[]), 0) = 0 or topics && $3::text[])
order by dispatcher
limit 5
