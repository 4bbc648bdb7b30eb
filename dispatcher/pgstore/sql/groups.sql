-- Finds the groups of open dead letters, the largest first. Each group is one look into an index, the
-- next one after the last, and its records are counted up to a cap (CONTRACT C-96).
-- $1 namespace; $2 topics; $3 most groups to look at; $4 cap of a count; $5 most records to count in all, though a
-- hundred of each group; $6 how many groups to list.
with recursive step (topic, fingerprint) as (
    select topic, '' from unnest($2::text[]) as wanted (topic)
    union all
    select step.topic, (
        select fingerprint from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic = step.topic and fingerprint > step.fingerprint
        order by fingerprint limit 1
    )
    from step
    where step.fingerprint is not null
),
found as materialized (
    select topic, fingerprint from step where fingerprint <> '' limit $3::integer
),
most as materialized (
    select greatest(100, least($4::bigint, $5::bigint / count(*))) as records from found having count(*) > 0
),
listed as materialized (
    select found.*, counted.n, counted.n > most.records as cut
    from most cross join found cross join lateral (
        select count(*) as n
        from (
            select from outbox.outbox_dead_letters
            where resolution is null and namespace = $1::text and topic = found.topic and fingerprint = found.fingerprint
            limit most.records + 1
        ) as open
    ) as counted
    order by n desc, topic, fingerprint
    limit $6::integer
)
select listed.topic, listed.fingerprint, listed.n, listed.cut, first.dead_at, last.dead_at, last.reason, last.class, last.code,
    last.place, coalesce(last.error, ''), last.event_id
from listed
cross join lateral (
    select dead_at from outbox.outbox_dead_letters
    where resolution is null and namespace = $1::text and topic = listed.topic and fingerprint = listed.fingerprint
    order by dead_at limit 1
) as first
cross join lateral (
    select dead_at, reason, class, code, place, error, event_id from outbox.outbox_dead_letters
    where resolution is null and namespace = $1::text and topic = listed.topic and fingerprint = listed.fingerprint
    order by dead_at desc limit 1
) as last
order by listed.n desc, listed.topic, listed.fingerprint
