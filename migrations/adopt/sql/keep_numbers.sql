-- enqueue continues above the numbers of their table, which it does not look at any more.
insert into outbox_aggregate_sequences as s (namespace, aggregate_type, aggregate_id, last)
select {namespace}, {aggregateType}, {aggregateId}, max({sequence})
from {table} as r
where {aggregateId} <> '' and octet_length({namespace}) + octet_length({aggregateId}) + octet_length({aggregateType}) <= 2600
group by 1, 2, 3
order by 1, 2, 3
on conflict (namespace, aggregate_type, aggregate_id) do update set last = excluded.last where s.last < excluded.last
