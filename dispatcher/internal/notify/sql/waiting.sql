-- Counts the deaths that the address is still to be told of, and says when the first of them was, and its age.
-- $1 namespace; $2 topics, none for all; $3 how many are counted.
select count(*), min(dead_at), coalesce(extract(epoch from now() - min(dead_at)), 0)::float8
from (
    select dead_at
    from outbox.outbox_dead_letters
    where namespace = $1::text and notify_at is not null
      and (coalesce(cardinality($2::text[]), 0) = 0 or topic = any ($2::text[]))
    limit $3::integer
) as waiting
