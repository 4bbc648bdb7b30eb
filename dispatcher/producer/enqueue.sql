select e.id, e.inserted
from (
    select event, n
    from jsonb_array_elements($1::text::jsonb) with ordinality as element (event, n)
    -- Locks are taken in one order of keys, by every transaction.
    order by case when event ->> 'lockKey' is not null then array[event ->> 'namespace', event ->> 'topic',
                 coalesce(event ->> 'partitionKey', event ->> 'aggregateID')] end, n
) as r
cross join lateral %s.enqueue(
    p_namespace      => event ->> 'namespace',
    p_topic          => event ->> 'topic',
    p_payload        => event -> 'payload',
    p_event_type     => event ->> 'eventType',
    p_aggregate_type => event ->> 'aggregateType',
    p_aggregate_id   => event ->> 'aggregateID',
    p_partition_key  => event ->> 'partitionKey',
    p_tenant_id      => (event ->> 'tenantID')::uuid,
    p_dedupe_key     => event ->> 'dedupeKey',
    p_headers        => event -> 'headers',
    p_delay          => (event ->> 'delay')::interval,
    p_id             => (event ->> 'id')::uuid,
    p_max_bytes      => 2147483647,
    p_lock_key       => event ->> 'lockKey' is not null
) as e
order by r.n
