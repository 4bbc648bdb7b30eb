-- Finds keys whose first live rows were claimed before and may be claimed again: their leases ended, or they were
-- given back. It looks at what lies at both ends of the rows below floors: near a floor are the rows that other
-- workers claimed lately, and at the front those of keys with many rows.
-- $1 namespace; $2..$4 topics and their floors (time, id); $5 how many rows to look at from each end; $6 whether a
-- dead row blocks its key; $7 how many keys to return.

-- A row that was never claimed has lease 0, so rows that only wait for others cost no more than this look at them.
with came as materialized (
    select share.n as range, key_hash, min(seq) as seq
    from unnest($2::text[], $3::timestamptz[], $4::uuid[]) with ordinality as share (topic, floor_at, floor_id, n)
    cross join lateral (
        (
            select key_hash, seq, next_attempt_at, status, locked_until, lease
            from outbox.outbox_events
            where live
              and namespace = $1::text
              and topic = share.topic
              and (next_attempt_at, id) <= (share.floor_at, share.floor_id)
            order by next_attempt_at, id
            limit $5::integer
        )
        union all
        (
            select key_hash, seq, next_attempt_at, status, locked_until, lease
            from outbox.outbox_events
            where live
              and namespace = $1::text
              and topic = share.topic
              and (next_attempt_at, id) <= (share.floor_at, share.floor_id)
            order by next_attempt_at desc, id desc
            limit $5::integer
        )
    ) as event
    where lease > 0
      and key_hash is not null
      and next_attempt_at <= now()
      and (status = 'pending' or locked_until < now())
    group by share.n, key_hash
)
select range, key_hash
from came
where (
        select before.seq from outbox.outbox_events as before
        where before.live and before.key_hash = came.key_hash and before.seq < came.seq
        order by before.seq desc limit 1
    ) is null
  and (
        select dead.seq from outbox.outbox_dead_letters as dead
        where $6::boolean and dead.resolution is null and dead.key_hash = came.key_hash and dead.seq < came.seq
        limit 1
    ) is null
limit $7::integer
