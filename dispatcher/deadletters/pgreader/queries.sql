-- name: groups
-- Counts open dead letters by their group. The groups are found by a loose scan of outbox_dead_letters_open: one
-- probe for each, whatever the number of dead letters. Those that the filter matches count to the most. What is read of
-- a group then is its first and its last, and its count up to a cap, or up to an equal part of what is counted in all.
-- $1 namespace; $2 most groups; $3 cap; $4 most that are counted in all; then the filter's.
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
    select topic, fingerprint, row_number() over () > $2::integer as more
    from found
    cross join lateral (
        select from outbox.outbox_dead_letters as l
        where l.topic = found.topic and l.fingerprint = found.fingerprint and /* filter */ true
        limit 1
    ) as matching
    limit $2::integer + 1
),
part as materialized (select least($3::integer, $4::integer / greatest(count(*), 1)) as n from groups)
select g.fingerprint, g.topic, last.reason, coalesce(last.class, ''), coalesce(last.code, ''), coalesce(last.place, ''),
       least(counted.n, (select n from part)), counted.n > (select n from part), first.dead_at, last.dead_at, coalesce(last.id, 0), coalesce(last.event_id::text, ''), coalesce(last.error, ''), g.more
from groups as g
cross join lateral (
    select count(*) as n from (
        select from outbox.outbox_dead_letters as l
        where l.topic = g.topic and l.fingerprint = g.fingerprint and not g.more and /* filter */ true
        limit (select n from part) + 1
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

-- name: sampled
-- Estimates how many open dead letters some groups have, from some pages of the table, each time the same. Of a table that has no more
-- pages all are read, and the counts are whole.
-- $1 fingerprints; $2 pages; then the filter's.
select l.fingerprint, round(count(*) * greatest(1, size.pages / $2::integer))::bigint, size.pages <= $2::integer
from (select pg_relation_size('outbox.outbox_dead_letters') / current_setting('block_size')::float8 as pages) as size
cross join outbox.outbox_dead_letters as l
    tablesample system (least(100, 100 * $2::integer / greatest(1, pg_relation_size('outbox.outbox_dead_letters') / current_setting('block_size')::float8)))
    repeatable (0)
where l.fingerprint = any ($1::text[]) and /* filter */ true
group by l.fingerprint, size.pages

-- name: matching
-- Counts open dead letters by their group, all of those that match, in one pass: for a filter by what is in no index, with which
-- each look into a group would read all of it.
-- $1 most groups; then the filter's.
with matching as materialized (
    select l.topic, l.fingerprint, count(*) as n, min(l.dead_at) as since, max(l.dead_at) as last
    from outbox.outbox_dead_letters as l
    where /* filter */ true
    group by l.topic, l.fingerprint
    limit $1::integer + 1
)
select m.fingerprint, m.topic, last.reason, coalesce(last.class, ''), coalesce(last.code, ''), coalesce(last.place, ''),
       m.n, false, m.since, m.last, last.id, last.event_id::text, coalesce(last.error, ''), row_number() over (order by m.n desc, m.topic, m.fingerprint) > $1::integer
from matching as m
cross join lateral (
    select * from outbox.outbox_dead_letters as l
    where l.topic = m.topic and l.fingerprint = m.fingerprint and l.dead_at = m.last and /* filter */ true
    limit 1
) as last
order by m.n desc, m.topic, m.fingerprint

-- name: counts
-- Counts open dead letters by what they are about, the largest count first: of each group the newest, up to an equal part of
-- what is read in all. Without a group whose part was full, and without more groups, the counts are whole.
-- $1 what: tenant, type or aggregate; $2 namespace; $3 most groups; $4 most dead letters of all groups; $5 most counts, and one; then
-- the filter's.
with recursive found as (
    (
        select topic, fingerprint from outbox.outbox_dead_letters
        where resolution is null and namespace = $2::text
        order by topic, fingerprint
        limit 1
    )
    union all
    select following.topic, following.fingerprint
    from found
    cross join lateral (
        select topic, fingerprint from outbox.outbox_dead_letters
        where resolution is null and namespace = $2::text and (topic, fingerprint) > (found.topic, found.fingerprint)
        order by topic, fingerprint
        limit 1
    ) as following
),
groups as materialized (
    select topic, fingerprint
    from found
    cross join lateral (
        select from outbox.outbox_dead_letters as l
        where l.topic = found.topic and l.fingerprint = found.fingerprint and /* filter */ true
        limit 1
    ) as matching
    limit $3::integer + 1
),
part as materialized (select $4::integer / greatest(count(*), 1) as n, count(*) > $3::integer as more from groups),
counted as (
    select g.topic, g.fingerprint, l.value, count(*) as n, min(l.dead_at) as since, max(l.dead_at) as last
    from groups as g
    cross join lateral (
        select case $1::text
                   when 'tenant' then l.tenant_id::text
                   when 'type' then l.event_type
                   else concat_ws('/', l.aggregate_type, l.aggregate_id)
               end collate "C" as value, l.dead_at
        from outbox.outbox_dead_letters as l
        where l.topic = g.topic and l.fingerprint = g.fingerprint and /* filter */ true
        order by l.dead_at desc
        limit (select n from part)
    ) as l
    group by g.topic, g.fingerprint, l.value
),
marked as (
    select c.*, sum(c.n) over (partition by c.topic, c.fingerprint) >= part.n or part.more as capped
    from counted as c cross join part
)
select coalesce(value, ''), sum(n)::bigint, count(*), min(since), max(last), bool_or(capped)
from marked
group by coalesce(value, '')
order by sum(n) desc, 1
limit $5::integer

-- name: matching_counts
-- Counts open dead letters by what they are about, all of those that match, in one pass, as the statement matching does.
-- $1 what: tenant, type or aggregate; $2 most counts, and one; then the filter's.
select value, sum(n)::bigint, count(*), min(since), max(last), false
from (
    select coalesce(case $1::text
               when 'tenant' then l.tenant_id::text
               when 'type' then l.event_type
               else concat_ws('/', l.aggregate_type, l.aggregate_id)
           end, '') as value, l.fingerprint, count(*) as n, min(l.dead_at) as since, max(l.dead_at) as last
    from outbox.outbox_dead_letters as l
    where /* filter */ true
    group by 1, 2
) as counted
group by value
order by sum(n) desc, value
limit $2::integer

-- name: dead_letters
-- Dead letters, the newest first.
-- $1 the id before which they begin; $2 most dead letters; $3 whether with all that is known of them; then the
-- filter's.
select l.id, l.event_id::text, l.fingerprint, l.topic, coalesce(l.seq, 0), coalesce(l.event_type, ''), coalesce(l.aggregate_type, ''),
       coalesce(l.aggregate_id, ''), coalesce(l.tenant_id::text, ''), l.reason, l.class, l.code, l.place, coalesce(l.error, ''),
       l.attempts, l.dead_at, l.resolution, coalesce(l.resolved_at, now()), coalesce(l.resolved_by, ''),
       coalesce(l.resolution_reason, ''), coalesce(l.replay_id::text, ''), coalesce(l.replay_state, ''),
       case when $3::boolean then coalesce(l.worker::text, '') else '' end,
       case when $3::boolean then l.failures else '[]' end,
       case when $3::boolean then coalesce(l.response, '') else '' end
from outbox.outbox_dead_letters as l
where l.id < $1::bigint and /* filter */ true
order by l.id desc
limit $2::integer

-- name: event
-- An event's row. Its times are within the years 1970 to 9999, as JSON has them: an adopted row may be of -infinity.
-- $1 its id; $2 namespace; $3 topics, null for all; $4 whether with its content; $5 most bytes of that.
select e.id::text, e.topic, e.seq, coalesce(e.aggregate_sequence, 0), coalesce(e.event_type, ''), coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''),
       coalesce(e.partition_key, ''), coalesce(e.dedupe_key, ''), coalesce(e.tenant_id::text, ''), e.size_bytes, least(greatest(e.created_at, 'epoch'), '9999-12-31'),
       least(greatest(e.updated_at, 'epoch'), '9999-12-31'), e.status, e.attempts, e.lease,
       case when e.status = 'pending' then least(greatest(e.next_attempt_at, 'epoch'), '9999-12-31') end,
       coalesce(e.locked_by::text, ''), case when e.locked_until is not null then least(greatest(e.locked_until, 'epoch'), '9999-12-31') end, coalesce(e.dead_reason, ''), coalesce(e.last_error, ''), coalesce(e.failures, '[]'),
       case when $4::boolean and e.size_bytes <= $5::integer then e.headers end,
       case when $4::boolean and e.size_bytes <= $5::integer then e.payload end
from outbox.outbox_events as e
where e.id = $1::uuid and e.namespace = $2::text and ($3::text[] is null or e.topic = any ($3::text[]))

-- name: copies
-- The original of a copy, or the copies of an original (CONTRACT C-19): whether it is the original; its topic, id, and status, empty when its
-- row is gone; and whether original or copy is of the topics of $3. A copy has the original's id and topic in its headers, which count where
-- its own id follows from them, by what outbox_copy_id of migration 0009 says, which this login need not execute. Each is one look at the primary key.
-- $1 the event's id; $2 namespace; $3 topics, null for all; $4 topics to look for copies in, next to those of dispatchers.
with place as materialized (
    select unnest(copies || topics) as topic from outbox.outbox_workers where namespace = $2::text
    union
    select unnest($3::text[] || $4::text[])
)
select false, copy.*
from place
cross join lateral (
    select overlay(overlay(md5($1::uuid::text || ' ' || place.topic)::uuid::text placing left($1::uuid::text, 14) || '8' from 1) placing 'a' from 20)::uuid as id
    offset 0
) as made
cross join lateral (
    select e.topic, e.id::text, e.status, array[e.topic, e.headers ->> 'originaltopic'] && coalesce($3::text[], array[e.topic])
    from outbox.outbox_events as e
    where e.id = made.id and e.namespace = $2::text and e.headers ->> 'originalid' = $1::uuid::text
    limit 1
) as copy
union all
select true, copy.original_topic, copy.original, coalesce(original.status, ''), array[copy.topic, copy.original_topic] && coalesce($3::text[], array[copy.topic])
from (
    select e.id::text, e.topic, e.headers ->> 'originalid' as original, coalesce(e.headers ->> 'originaltopic', '') as original_topic
    from outbox.outbox_events as e
    where e.id = $1::uuid and e.namespace = $2::text
    offset 0
) as copy
left join lateral (
    select o.status
    from outbox.outbox_events as o
    where o.id = case when copy.original ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then copy.original::uuid end and o.namespace = $2::text
    limit 1
) as original on true
where copy.id = overlay(overlay(md5(copy.original || ' ' || copy.topic)::uuid::text placing left(copy.original, 14) || '8' from 1) placing 'a' from 20)
order by 1, 2, 3

-- name: status
-- What an event is now, for a login that may not read its row whole.
-- $1 its id; $2 namespace; $3 topics, null for all.
select e.status
from outbox.outbox_events as e
where e.id = $1::uuid and e.namespace = $2::text and ($3::text[] is null or e.topic = any ($3::text[]))

-- name: dedupe
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

-- name: journal
-- The records of an event in the journal, the newest first.
-- $1 its id; $2 namespace; $3 topics, null for all; $4 most records.
select r.at, r.lsn::text, r.xid::text, r.operation, coalesce(r.before, ''), coalesce(r.after, ''), coalesce(r.attempts, 0), coalesce(r.lease, 0),
       coalesce(r.worker::text, ''), r.login, coalesce(r.reason, ''), r.topic
from outbox.outbox_journal as r
where r.event_id = $1::uuid and r.namespace = $2::text and ($3::text[] is null or r.topic = any ($3::text[]))
order by r.lsn desc, r.at desc
limit $4::integer
