-- Marks leased rows delivered (CONTRACT C-23), and returns the ids that were not held: mostly none.
-- $1 ids of the leases, $2 their attempt; $3 worker.
--
-- The lease is the guard, and the whole guard: only a processing row has locked_by. A condition on
-- status or live besides would tempt the planner to start from the live index.
--
-- With "= any" there is one plan, whatever is known of the table: the ids are looked up in order.
with acked as (
    update outbox.outbox_events
    set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
    where id = any ($1::uuid[]) and attempts = $2::integer and locked_by = $3::uuid
    returning id
)
select id from unnest($1::uuid[]) as lease (id)
where (select count(*) from acked) < cardinality($1::uuid[]) and id not in (select id from acked)
