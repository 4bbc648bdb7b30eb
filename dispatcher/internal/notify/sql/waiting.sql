-- Counts the dead letters whose notification is still to be sent, with the time and the age of the first.
-- $1 namespace; $2 topics, none for all; $3 how many are counted.
select count(*), min(dead_at), coalesce(extract(epoch from now() - min(dead_at)), 0)::float8
from (
    select dead_at
    from outbox.outbox_dead_letters
    where namespace = $1::text and notify_at is not null
      and (coalesce(cardinality($2::text[]), 0) = 0 or topic = any ($2::text[]))
    limit $3::integer
) as waiting
