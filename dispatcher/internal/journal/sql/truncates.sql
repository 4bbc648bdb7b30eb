-- When the whole table of events was emptied.
-- $1 from when on; $2 how many.
select at, lsn::text, xid::text, login
from outbox.outbox_journal
where event_id is null and operation = 'truncate' and at >= $1::timestamptz
order by at
limit $2::integer
