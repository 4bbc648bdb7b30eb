-- name: blocked
-- Finds the keys that have live rows behind an open dead letter (CONTRACT C-50).
-- $1 namespace; $2 topics; $3 how many dead letters to read of each; $4 how many keys to list.
with dead_letter as materialized (
    select wanted.topic, open.*, count(*) over (partition by wanted.topic) = $3::integer as cut
    from unnest($2::text[]) as wanted (topic)
    cross join lateral (
        select event_id, seq, key_hash, dead_at
        from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic = wanted.topic
        order by fingerprint, dead_at
        limit $3::integer
    ) as open
),
blocked as materialized (
    select first.*
    from (select distinct on (key_hash) * from dead_letter where key_hash is not null order by key_hash, seq) as first
    cross join lateral (
        select from outbox.outbox_events
        where live and key_hash = first.key_hash and seq > first.seq
        order by seq
        limit 1
    ) as behind
)
select listed.topic, coalesce(nullif(e.partition_key, ''), e.aggregate_id, ''), listed.event_id, listed.dead_at,
       (select count(*) from blocked), (select coalesce(bool_or(cut), false) from dead_letter)
from (select * from blocked order by dead_at, event_id limit $4::integer) as listed
left join outbox.outbox_events as e on e.id = listed.event_id
order by listed.dead_at, listed.event_id

-- name: depth
-- Counts the backlog of topics, each count up to a number of rows and one (CONTRACT C-96). What is due later waits for a
-- retry, unless its producer delayed it and it was never due.
-- $1 namespace; $2 topics; $3 most rows of a count.
select wanted.topic, due.n, later.n, dead.n, due.processing, later.scheduled, least(due.first, later.first), now()
from unnest($2::text[]) as wanted (topic)
cross join lateral (
    select count(*) as n, count(*) filter (where status = 'processing') as processing, min(first) as first
    from (
        -- Within what every reader has a time for: an adopted row may have been created at -infinity, or in the future.
        select status, least(greatest(coalesce(first_due_at, created_at), 'epoch'), now()) as first
        from outbox.outbox_events
        where live and namespace = $1::text and topic = wanted.topic and next_attempt_at <= now()
        order by next_attempt_at, id
        limit $3::integer + 1
    ) as front
) as due
cross join lateral (
    select count(*) as n, count(*) filter (where scheduled) as scheduled, min(first) filter (where not scheduled) as first
    from (
        select coalesce(first_due_at > now(), false) as scheduled, least(greatest(coalesce(first_due_at, created_at), 'epoch'), now()) as first
        from outbox.outbox_events
        where live and namespace = $1::text and topic = wanted.topic and next_attempt_at > now()
        limit $3::integer + 1
    ) as behind
) as later
cross join lateral (
    select count(*) as n
    from (
        select from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic = wanted.topic
        limit $3::integer + 1
    ) as open
) as dead

-- name: groups
-- Finds the groups of open dead letters, the largest first. Each group is one look into an index, the
-- next one after the last, and its records are counted up to a cap (CONTRACT C-96).
-- $1 namespace; $2 topics; $3 most groups to look at; $4 cap of a count; $5 most records to count in all, though
-- ten of each group; $6 how many groups to list.
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
    select greatest(10, least($4::bigint, $5::bigint / count(*))) as records from found having count(*) > 0
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

-- name: sample_dead
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

-- name: sample_events
-- Estimates how many live rows topics have, from some pages of the table, evenly spread; and when the first of those was due first.
-- $1 namespace; $2 topics; $3 pages to read.
with page as materialized (
    select floor((part + random()) * step)::bigint as number, step
    from (
        select greatest(1, pg_relation_size('outbox.outbox_events') / current_setting('block_size')::float8 / $3::integer) as step
    ) as size
    cross join generate_series(0, $3::integer - 1) as part
)
select topic,
       round(max(step) * count(*) filter (where not scheduled))::bigint as waiting,
       round(max(step) * count(*) filter (where scheduled))::bigint as scheduled,
       round(max(step) * count(*) filter (where later and not scheduled))::bigint as retrying,
       min(first) filter (where not scheduled) as first
from page
cross join lateral (
    select namespace, topic, live, next_attempt_at > now() as later, next_attempt_at > now() and coalesce(first_due_at > now(), false) as scheduled,
        least(greatest(coalesce(first_due_at, created_at), 'epoch'), now()) as first
    from outbox.outbox_events
    where ctid >= format('(%s,0)', page.number)::tid and ctid < format('(%s,0)', page.number + 1)::tid
    offset 0 -- keeps the conditions below out of here: an index would be taken for them
) as event
where live and namespace = $1::text and topic = any ($2::text[])
group by topic

-- name: sizes
-- What the tables take on disk, with their indexes and what is stored out of line. It reads no table.
select relname::text, pg_total_relation_size(oid)
from pg_class
where oid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)

-- name: topics
-- Lists the namespace's topics that have live rows and, if $2, those that have open dead letters.
-- Each topic is one look into an index: the next one after the last.
-- $1 namespace; $2 whether to add those of dead letters.
with recursive live (topic) as (
    (
        select topic from outbox.outbox_events
        where live and namespace = $1::text
        order by topic limit 1
    )
    union all
    select (
        select topic from outbox.outbox_events
        where live and namespace = $1::text and topic > live.topic
        order by topic limit 1
    )
    from live
    where live.topic is not null
),
dead (topic) as (
    (
        select topic from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and $2::boolean
        order by topic limit 1
    )
    union all
    select (
        select topic from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic > dead.topic
        order by topic limit 1
    )
    from dead
    where dead.topic is not null
)
select topic from live where topic is not null
union
select topic from dead where topic is not null
order by topic
