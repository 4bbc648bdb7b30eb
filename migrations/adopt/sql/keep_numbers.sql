-- enqueue continues above the numbers of their table, which it does not look at any more. Counters that are right stay unlocked.
insert into outbox_aggregate_sequences as s (namespace, aggregate_type, aggregate_id, last)
select {namespace}, coalesce({aggregateType}, ''), {aggregateId}, max({sequence})
from {table} as r
left join outbox_aggregate_sequences as counter
    on counter.namespace = {namespace} and counter.aggregate_type = coalesce({aggregateType}, '') and counter.aggregate_id = {aggregateId}
where {aggregateId} <> '' and octet_length({namespace}) + octet_length({aggregateId}) + octet_length(coalesce({aggregateType}, '')) <= 2600
group by 1, 2, 3, counter.last
having max({sequence}) > coalesce(counter.last, 0)
order by 1, 2, 3
on conflict (namespace, aggregate_type, aggregate_id) do update set last = excluded.last where s.last < excluded.last
