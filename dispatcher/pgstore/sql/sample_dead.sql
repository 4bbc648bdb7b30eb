-- Estimates how many open dead letters the groups of topics have, from some pages of the table, evenly spread.
-- $1 namespace; $2 topics; $3 pages to read.
with page as materialized (
    select floor((part + random()) * step)::bigint as number, step
    from (
        select greatest(1, pg_relation_size('outbox.outbox_dead_letters') / current_setting('block_size')::float8 / $3::integer) as step
    ) as size
    cross join generate_series(0, $3::integer - 1) as part
)
select topic, fingerprint, round(max(step) * count(*))::bigint as dead
from page
cross join lateral (
    select namespace, topic, fingerprint, resolution
    from outbox.outbox_dead_letters
    where ctid >= format('(%s,0)', page.number)::tid and ctid < format('(%s,0)', page.number + 1)::tid
    offset 0 -- keeps the conditions below out of here: an index would be taken for them
) as dead_letter
where resolution is null and namespace = $1::text and topic = any ($2::text[])
group by topic, fingerprint
