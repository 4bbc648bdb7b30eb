-- Reads some dead letters in the order of their ids: the last id, how many there are, and the events of those
-- that are old.
-- $1 the id after which to begin; $2 how many; $3 age of resolved ones; $4 age of unresolved ones,
-- null for never; $5 namespace, empty for all; $6 topics, none for all.
with read as materialized (
    select * from outbox.outbox_dead_letters where id > $1::bigint order by id limit $2::integer
)
select coalesce(max(id), 0), count(*), coalesce(array_agg(distinct event_id) filter (
    where (resolved_at < now() - $3::interval or resolution is null and dead_at < now() - $4::interval)
      and ($5::text = '' or namespace = $5::text)
      and (coalesce(cardinality($6::text[]), 0) = 0 or topic = any ($6::text[]))), '{}')
from read
