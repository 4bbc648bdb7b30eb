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
