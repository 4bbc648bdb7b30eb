-- The records of some events, in the order of the events' ids and of time, each with the event's row as it is. One
-- statement has one snapshot: record and row belong together. The days ahead, which have no records, are not read.
-- $1 the first id; $2 about how many records of that time the events of a page have; $3 from when on;
-- $4 namespace, empty for all; $5 topics, none for all.
with settings as materialized (
    select since from outbox.outbox_journal_settings
),
page as materialized (
    select event_id
    from outbox.outbox_journal
    where event_id >= $1::uuid
      and at >= greatest($3::timestamptz, (select since from settings))
      and at < now() + interval '1 day'
      and ($4::text = '' or namespace = $4::text)
      and (coalesce(cardinality($5::text[]), 0) = 0 or topic = any ($5::text[]))
    order by event_id
    limit $2::integer
)
select r.event_id, r.at, r.lsn::text, r.xid::text, r.operation, coalesce(r.before, ''), coalesce(r.after, ''), coalesce(r.lease, 0),
       coalesce(r.lease_before, 0), coalesce(r.attempts, 0), coalesce(r.attempts_before, 0), coalesce(r.worker::text, ''), r.namespace,
       r.topic, r.login, coalesce(e.status, ''), coalesce(e.lease, 0), coalesce(e.attempts, 0), coalesce(e.locked_by::text, ''),
       coalesce(e.created_at >= (select since from settings), false), coalesce(r.reason, ''),
       coalesce(e.id is not null and r.operation in ('insert', 'edit') and r.digest <> outbox.outbox_journal_digest(e), false),
       r.operation = 'resolve' and exists (select from outbox.outbox_replays where id = r.replay)
from (select distinct event_id from page) as page
join outbox.outbox_journal as r on r.event_id = page.event_id
left join outbox.outbox_events as e on e.id = page.event_id
where r.at >= (select since from settings) and r.at < now() + interval '1 day'
order by r.event_id, r.lsn, r.at
