-- Counts open dead letters by their group. The groups are found by a loose scan of outbox_dead_letters_open: one
-- probe for each, whatever the number of dead letters. What is read of a group then is its first and its last, and
-- its count up to a cap and one.
-- $1 namespace; $2 most groups; $3 cap; then the filter's.
with recursive found as (
    (
        select topic, fingerprint from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text
        order by topic, fingerprint
        limit 1
    )
    union all
    select following.topic, following.fingerprint
    from found
    cross join lateral (
        select topic, fingerprint from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and (topic, fingerprint) > (found.topic, found.fingerprint)
        order by topic, fingerprint
        limit 1
    ) as following
),
groups as (
    select topic, fingerprint, row_number() over () > $2::integer as more from found limit $2::integer + 1
)
select g.fingerprint, g.topic, last.reason, coalesce(last.class, ''), coalesce(last.code, ''), coalesce(last.place, ''),
       counted.n, first.dead_at, last.dead_at, coalesce(last.id, 0), coalesce(last.event_id::text, ''), coalesce(last.error, ''), g.more
from groups as g
cross join lateral (
    select count(*) as n from (
        select from outbox.outbox_dead_letters as l
        where l.topic = g.topic and l.fingerprint = g.fingerprint and not g.more and /* filter */ true
        limit $3::integer + 1
    ) as capped
) as counted
left join lateral (
    select dead_at from outbox.outbox_dead_letters as l
    where l.topic = g.topic and l.fingerprint = g.fingerprint and counted.n > 0 and /* filter */ true
    order by dead_at
    limit 1
) as first on true
left join lateral (
    select * from outbox.outbox_dead_letters as l
    where l.topic = g.topic and l.fingerprint = g.fingerprint and counted.n > 0 and /* filter */ true
    order by dead_at desc
    limit 1
) as last on true
where counted.n > 0 or g.more
order by counted.n desc, g.topic, g.fingerprint
