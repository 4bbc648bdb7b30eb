-- Marks leased rows delivered (CONTRACT C-23), and returns the ids that were not held: mostly none.
-- $1 ids of the rows, $2 the number of their lease; $3 worker.
--
-- The lease number and the worker are the whole guard: only a processing row has locked_by. The worker is
-- in it because a crash of the database may forget the last numbers and give them to another worker. A
-- condition on status or live as well would tempt the planner to start from the live index.
--
-- With "= any" there is one plan, whatever is known of the table: the ids are looked up in order.
with acked as (
    update outbox.outbox_events
    set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
    where id = any ($1::uuid[]) and lease = $2::bigint and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as held (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)
