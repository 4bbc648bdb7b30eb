-- name: settings
-- How the journal is set, how many pages the table of events has, which triggers write the journal, and which operations have ended:
-- all their records are there.
select enabled, since, now(), pg_relation_size('outbox.outbox_events') / current_setting('block_size')::bigint,
       array(select tgname::text from pg_trigger where tgrelid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)
           and tgname like 'outbox\_journal\_%' and tgenabled in ('O', 'A') order by 1),
       array(select id::text from outbox.outbox_replays where finished_at is not null and began_at >= since)
from outbox.outbox_journal_settings

-- name: truncates
-- When the whole table of events was emptied.
-- $1 from when on; $2 how many.
select at, lsn::text, xid::text, login
from outbox.outbox_journal
where event_id is null and operation = 'truncate' and at >= $1::timestamptz
order by at
limit $2::integer

-- name: page
-- The events of some records, in the order of their ids: the last of them, how many records these are, and which of the
-- events are compared. Whatever is compared, a page has so many records: those of other namespaces too, and of the first day the
-- hours before. The limit may cut the records of the last event, so all of that are looked at. No row is the end.
-- $1 the first id; $2 how many records; $3 from when on; $4 namespace, empty for all; $5 topics, none for all.
with begins as materialized (
    select greatest($3::timestamptz, since) as at from outbox.outbox_journal_settings
),
scanned as materialized (
    select event_id, at, namespace, topic
    from outbox.outbox_journal
    where event_id >= $1::uuid
      and at >= (select date_trunc('day', begins.at at time zone 'UTC') at time zone 'UTC' from begins)
      and at < now() + interval '1 day'
    order by event_id
    limit $2::integer
),
ends as materialized (
    select event_id from scanned order by event_id desc limit 1
)
select ends.event_id, (select count(*) from scanned), array(
        select distinct event_id
        from (
            select event_id, at, namespace, topic from scanned
            union all
            select r.event_id, r.at, r.namespace, r.topic from outbox.outbox_journal as r
            where r.event_id = ends.event_id and r.at < now() + interval '1 day'
        ) as found
        where at >= (select begins.at from begins)
          and ($4::text = '' or namespace = $4::text)
          and (coalesce(cardinality($5::text[]), 0) = 0 or topic = any ($5::text[]))
    )::text[]
from ends

-- name: chains
-- The records of some events, in the order of the events' ids and of time, each with the event's row as it is. One
-- statement has one snapshot: record and row belong together. The days ahead, which have no records, are not read.
-- $1 their ids; $2 more than the longest lease.
with settings as materialized (
    select since from outbox.outbox_journal_settings
)
select r.event_id, r.at, r.lsn::text, r.xid::text, r.operation, coalesce(r.before, ''), coalesce(r.after, ''), coalesce(r.lease, 0),
       coalesce(r.lease_before, 0), coalesce(r.attempts, 0), coalesce(r.attempts_before, 0), coalesce(r.worker::text, ''), r.namespace,
       r.topic, r.login, coalesce(e.status, ''), coalesce(e.lease, 0), coalesce(e.attempts, 0), coalesce(e.locked_by::text, ''),
       coalesce(e.created_at >= (select since from settings), false), coalesce(r.reason, ''),
       coalesce(e.id is not null and r.operation in ('insert', 'edit') and r.digest <> outbox.outbox_journal_digest(e), false),
       r.operation in ('resolve', 'reopen') and exists (
           select from outbox.outbox_replays
           where id = r.replay and action = case when r.operation = 'reopen' then 'reopen' when r.reason = 'discarded' then 'discard' when r.reason = 'replayed' then 'replay' end
       ),
       coalesce(r.replay, '00000000-0000-0000-0000-000000000000'),
       coalesce(e.status = 'dead', false) and not exists (
           select from outbox.outbox_dead_letters
           where event_id = e.id and namespace = e.namespace and topic = e.topic and coalesce(resolution, 'discarded') = 'discarded'
       ),
       coalesce(e.status = 'dead', false) and not exists (select from outbox.outbox_dead_letters where event_id = e.id and resolution is null),
       coalesce(e.status = 'processing' and e.locked_until > now() + $2::interval, false),
       coalesce(e.status = 'pending' and e.next_attempt_at > now() + 2 * $2::interval, false)
from unnest($1::text[]::uuid[]) as page (event_id)
cross join lateral ( -- looks up each event, whatever the planner knows of the records
    select *
    from outbox.outbox_journal as record
    where record.event_id = page.event_id and record.at >= (select since from settings) and record.at < now() + interval '1 day'
    offset 0
) as r
left join outbox.outbox_events as e on e.id = page.event_id
order by r.event_id, r.lsn, r.at

-- name: operations
-- What operations count: dead letters that went back, were discarded or reopened, and events that were delivered.
-- $1 their ids; $2 namespace, empty for all.
select id, namespace, began_at, login, requeued + discarded + reopened, delivered
from outbox.outbox_replays
where id = any ($1::text[]::uuid[]) and began_at >= (select since from outbox.outbox_journal_settings)
  and ($2::text = '' or namespace = $2::text)
order by began_at, id

-- name: rows
-- The rows of some pages of the table whose last change is not in the journal. A change sets updated_at to the time of
-- its transaction, and its record is younger; the minute is for a clock that was set back.
-- $1 first page, and $2 the page after the last, as tids; $3 from when on; $4 namespace, empty for all; $5 topics,
-- none for all; $6 how many.
with settings as materialized (
    select since from outbox.outbox_journal_settings
)
select e.id, e.namespace, e.topic, e.status, e.updated_at
from outbox.outbox_events as e
where e.ctid >= $1::text::tid and e.ctid < $2::text::tid
  and e.updated_at >= greatest($3::timestamptz, (select since from settings))
  and ($4::text = '' or e.namespace = $4::text)
  and (coalesce(cardinality($5::text[]), 0) = 0 or e.topic = any ($5::text[]))
  and not exists (
      select from outbox.outbox_journal as r
      where r.event_id = e.id and r.at >= greatest(e.updated_at - interval '1 minute', (select since from settings))
        and r.at < now() + interval '1 day' and r.operation <> 'adopt'
  )
limit $6::integer
