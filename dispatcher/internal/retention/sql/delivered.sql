-- Removes delivered rows of some pages, a bounded number, and none that is locked (CONTRACT C-60).
-- It needs no index: the pages are read by their numbers.
-- $1 first page, and $2 the page after the last, as tids; $3 age; $4 namespace, empty for all; $5 topics, none for
-- all; $6 how many rows.
with old as materialized (
    select ctid as row
    from outbox.outbox_events
    where ctid >= $1::text::tid and ctid < $2::text::tid
      and status = 'delivered'
      and updated_at < now() - $3::interval
      and ($4::text = '' or namespace = $4::text)
      and (coalesce(cardinality($5::text[]), 0) = 0 or topic = any ($5::text[]))
    limit $6::integer
    for update skip locked
),
gone as (
    delete from outbox.outbox_events where ctid = any (array(select row from old)) and status = 'delivered'
      and (select set_config('outbox.removal', 'retention', true)) is not null
    returning 1
)
select count(*) from gone
