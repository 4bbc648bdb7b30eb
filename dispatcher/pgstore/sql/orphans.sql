-- Finds orphans, in all namespaces: due rows of topics that no worker serves, and rows that are leased to a worker that
-- is gone and that no other worker took over. Both have been so for a minute at least: a worker that is replaced, or a
-- lease that has just ended, does not make orphans.
-- $1 most topics to look at; $2 most rows to look at in all, though a hundred of each topic.
--
-- Topics are found by one look into an index each: the next one after the last. Workers in other languages are not
-- in outbox_workers, so a topic of which a worker holds a row is served too.
with recursive step (namespace, topic) as (
    (
        select namespace, topic from outbox.outbox_events
        where live
        order by namespace, topic limit 1
    )
    union all
    select next.namespace, next.topic
    from step
    cross join lateral (
        select namespace, topic from outbox.outbox_events
        where live and (namespace, topic) > (step.namespace, step.topic)
        order by namespace, topic limit 1
    ) as next
),
found as materialized (
    select namespace, topic from step limit $1::integer
),
most as materialized (
    select greatest(100, $2::bigint / greatest(count(*), 1)) as records, count(*) as topics from found
),
serving as materialized (
    select namespace, topics from outbox.outbox_workers where seen_at > now() - interval '1 minute'
),
gone as materialized (
    select coalesce(array_agg(worker), '{}') as workers from outbox.outbox_workers where seen_at <= now() - interval '1 minute'
)
select found.namespace, found.topic, case when served.known or front.held then 0 else front.pending end as unserved, front.abandoned,
       front.looked > most.records as cut, most.topics = $1::integer as more
from found
cross join most
cross join gone
cross join lateral (
    select exists (
        select from serving
        where serving.namespace = found.namespace and (serving.topics = '{}' or found.topic = any (serving.topics))
    ) as known
) as served
cross join lateral (
    select count(*) as looked, count(*) filter (where status = 'pending') as pending,
           count(*) filter (where status = 'processing' and (locked_until < now() - interval '1 minute' or locked_by = any (gone.workers))) as abandoned,
           coalesce(bool_or(locked_until > now() - interval '1 minute' and locked_by <> all (gone.workers)), false) as held
    from (
        select status, locked_until, locked_by from outbox.outbox_events
        where live and namespace = found.namespace and topic = found.topic and next_attempt_at <= now() - interval '1 minute'
        order by next_attempt_at, id
        limit most.records + 1
    ) as row
) as front
where front.abandoned > 0 or front.pending > 0 and not (served.known or front.held)
