select e.id, e.inserted
from jsonb_array_elements($1::text::jsonb) with ordinality as r (event, n)
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
    p_max_bytes      => 2147483647
) as e
order by r.n
