-- The condition that a dead letter is the last of its event: an earlier one that is still open was passed by. A subquery, which
-- is one probe for each whatever the planner believes; it makes "not exists" a join.
l.id = (select max(later.id) from outbox.outbox_dead_letters as later where later.event_id = l.event_id)
