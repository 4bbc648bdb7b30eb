-- Estimates how many live rows topics have, from some pages of the table, evenly spread.
-- $1 namespace; $2 topics; $3 pages to read.
with page as materialized (
    select floor((part + random()) * step)::bigint as number, step
    from (
        select greatest(1, pg_relation_size('outbox.outbox_events') / current_setting('block_size')::float8 / $3::integer) as step
    ) as size
    cross join generate_series(0, $3::integer - 1) as part
)
select topic,
       round(max(step) * count(*) filter (where next_attempt_at <= now()))::bigint as due,
       round(max(step) * count(*) filter (where next_attempt_at > now()))::bigint as scheduled,
       round(max(step) * count(*) filter (where next_attempt_at > now() and (attempts > 0 or last_error is not null)))::bigint as retrying
from page
cross join lateral (
    select namespace, topic, live, next_attempt_at, attempts, last_error
    from outbox.outbox_events
    where ctid >= format('(%s,0)', page.number)::tid and ctid < format('(%s,0)', page.number + 1)::tid
    offset 0 -- keeps the conditions below out of here: an index would be taken for them
) as event
where live and namespace = $1::text and topic = any ($2::text[])
group by topic
