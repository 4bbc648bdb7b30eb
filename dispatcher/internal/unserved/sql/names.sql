-- The first 1,000 names with pending events that no worker serves. Topics are found by one look into an index each.
with recursive step (namespace, topic) as (
    (select namespace, topic from outbox.outbox_events where live order by namespace, topic limit 1)
    union all
    select next.namespace, next.topic
    from step
    cross join lateral (
        select namespace, topic from outbox.outbox_events
        where live and (namespace, topic) > (step.namespace, step.topic)
        order by namespace, topic limit 1
    ) as next
)
select namespace, topic, (
        select count(*) from outbox.outbox_events as e
        where live and e.namespace = step.namespace and e.topic = step.topic and status = 'pending')
from step
where not exists (
        select from outbox.outbox_workers as w
        where w.namespace = step.namespace and (w.topics = '{}' or step.topic = any (w.topics)) and seen_at > now() - interval '1 minute')
    and exists (
        select from outbox.outbox_events as e where live and e.namespace = step.namespace and e.topic = step.topic and status = 'pending')
order by namespace, topic
limit 1000
