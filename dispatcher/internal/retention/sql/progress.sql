-- Writes the progress of a run, and what it has removed since the last time. The run of a worker that lost the
-- lease adds only what it removed: the position is another's.
-- $1 name; $2 worker; $3 position; $4..$7 removed: delivered, dead, expired, dead letters.
update outbox.outbox_sweeps as sweep
set position = case when held.mine then $3::bigint else position end,
    delivered = delivered + $4::bigint, dead = dead + $5::bigint, expired = expired + $6::bigint, dead_letters = dead_letters + $7::bigint
from (select exists (select from outbox.outbox_sweeps where name = 'retention' and holder = $2::uuid and held_until >= now()) as mine) as held
where name = $1::text
