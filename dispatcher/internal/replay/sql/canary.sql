-- Counts what was put back, up to a limit, and what of it has no outcome yet.
-- $1 replay; $2 limit.
select count(*), count(*) filter (where state = 'requeued')
from (
    select state from outbox.outbox_replay_items
    where replay_id = $1::uuid and state in ('requeued', 'delivered', 'dead_again')
    limit $2::integer
) as moved
