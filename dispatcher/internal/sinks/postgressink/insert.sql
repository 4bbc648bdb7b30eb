insert into %s (id, namespace, topic, event_type, aggregate_type, aggregate_id, partition_key,
    tenant_id, dedupe_key, sequence, aggregate_sequence, fencing_token, headers, payload, created_at)
select id, namespace, topic, nullif(event_type, ''), nullif(aggregate_type, ''), nullif(aggregate_id, ''), partition_key,
    tenant_id, nullif(dedupe_key, ''), sequence, nullif(aggregate_sequence, 0), fencing_token, headers::jsonb, payload::jsonb, created_at
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::uuid[], $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::timestamptz[])
    as e (id, namespace, topic, event_type, aggregate_type, aggregate_id, partition_key,
    tenant_id, dedupe_key, sequence, aggregate_sequence, fencing_token, headers, payload, created_at)
on conflict (id) do nothing
