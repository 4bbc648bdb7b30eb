-- Counts how the deliveries of a dispatcher ended of late, as its running workers report, and how many events of its
-- topics became dead. An event counts as delivered when a worker marked it so, never because its row is gone.
-- $1 namespace; $2 dispatcher; $3 its topics, none for all; $4 cap of the dead letters to count, those of other topics too.
select report.delivered_5m, report.failed_5m, report.delivered_1h, report.failed_1h, dead.in_5m, dead.in_1h, dead.looked, now()
from (
    select coalesce(sum(delivered_5m), 0)::bigint as delivered_5m, coalesce(sum(failed_5m), 0)::bigint as failed_5m,
           coalesce(sum(delivered_1h), 0)::bigint as delivered_1h, coalesce(sum(failed_1h), 0)::bigint as failed_1h
    from outbox.outbox_workers
    where namespace = $1::text and dispatcher = $2::text and seen_at > now() - interval '1 minute'
) as report
cross join (
    select count(*) filter (where ours and dead_at > now() - interval '5 minutes') as in_5m,
           count(*) filter (where ours) as in_1h, count(*) as looked
    from (
        select dead_at, coalesce(cardinality($3::text[]), 0) = 0 or topic = any ($3::text[]) as ours
        from outbox.outbox_dead_letters
        where namespace = $1::text and dead_at > now() - interval '1 hour'
          and coalesce(reason <> '', false) -- the index's condition
        order by dead_at desc
        limit $4::integer + 1
    ) as newest
) as dead
