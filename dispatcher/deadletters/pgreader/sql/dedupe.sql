-- The ids of the events with a dedupe key, one for each topic that has it, up to two. The topics of the namespace are
-- found by a loose scan of outbox_events_dedupe.
-- $1 the key; $2 namespace; $3 topics, null for all.
with recursive found as (
    (
        select topic from outbox.outbox_events
        where dedupe_key is not null and namespace = $2::text
        order by topic
        limit 1
    )
    union all
    select following.topic
    from found
    cross join lateral (
        select topic from outbox.outbox_events
        where dedupe_key is not null and namespace = $2::text and topic > found.topic
        order by topic
        limit 1
    ) as following
)
select e.id::text
from found
cross join lateral (
    select id from outbox.outbox_events
    where dedupe_key = $1::text and namespace = $2::text and topic = found.topic
    limit 1
) as e
where $3::text[] is null or found.topic = any ($3::text[])
order by e.id
limit 2
