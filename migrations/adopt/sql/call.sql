outbox_adopt(p_adoption => {name}, p_id => r.{id}::text, p_dedupe_key => ({dedupeKey})::text, p_namespace => ({namespace})::text,
        p_topic => ({topic})::text, p_payload => ({payload})::jsonb, p_event_type => ({type})::text, p_aggregate_type => ({aggregateType})::text,
        p_aggregate_id => ({aggregateId})::text, p_partition_key => ({key})::text, p_tenant_id => ({tenantId})::text::uuid,
        p_sequence => ({sequence})::bigint, p_headers => ({headers})::jsonb, p_created => ({created})::timestamptz, p_due => ({due})::timestamptz,
        p_attempts => ({attempts})::integer, p_max_attempts => ({maxAttempts})::integer, p_retry => ({retry})::jsonb, p_row => {row}, p_new => v_new)
