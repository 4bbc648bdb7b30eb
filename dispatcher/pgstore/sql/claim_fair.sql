-- claim.sql that gives each tenant of a topic its turn (CONTRACT C-37). What follows "taken" is that of claim.sql.
-- $1 namespace; $2, $3 and $5 topics, their limits, and the tenant after which each begins; $4 not used; $12 and $13 tenants
-- that are left alone, each with the number of its topic, from 1. The others are as in claim.sql. Rows without a tenant are
-- those of the tenant of zeros.
--
-- The index outbox_events_tenant leads to the next tenant after the last one, so a tenant costs one look, whatever it has.
-- A tenant whose rows are all leased or not yet due takes a turn and has no rows.
with recursive walk (topic_no, topic, rows, start, tenant, wrapped, n) as (
    select topic_no, topic, rows, start, start, false, 0
    from unnest($2::text[], $3::integer[], $4::timestamptz[], $5::uuid[]) with ordinality as share (topic, rows, unused, start, topic_no)
    union all
    select w.topic_no, w.topic, w.rows, w.start, next.tenant, next.wrapped, w.n + 1
    from walk as w cross join lateral (
        (
            select coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') as tenant, w.wrapped as wrapped
            from outbox.outbox_events
            where coalesce(live, false) and namespace = $1::text and topic = w.topic
              and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') > w.tenant
            order by coalesce(tenant_id, '00000000-0000-0000-0000-000000000000')
            limit 1
        )
        union all
        (
            select coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'), true
            from outbox.outbox_events
            where not w.wrapped and coalesce(live, false) and namespace = $1::text and topic = w.topic
            order by coalesce(tenant_id, '00000000-0000-0000-0000-000000000000')
            limit 1
        )
        limit 1
    ) as next
    where w.n < w.rows and not (next.wrapped and next.tenant > w.start)
),
-- The rows of a topic are divided among its tenants; the first ones have what does not divide.
turns as materialized (
    select topic_no, topic, rows, tenant, n, (rows + row_number() over topic_turns - 1) / count(*) over (partition by topic_no) as each
    from walk
    where n > 0 and not exists (select from unnest($12::integer[], $13::uuid[]) as full_ (topic_no, tenant) where full_.topic_no = walk.topic_no and full_.tenant = walk.tenant)
    window topic_turns as (partition by topic_no order by n)
),
first as materialized (
    select turn.topic_no, turn.topic, turn.rows, turn.tenant, turn.n, turn.each, e.*
    from turns as turn
    cross join lateral (
        select ctid, next_attempt_at, id, size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where coalesce(live, false)
          and namespace = $1::text
          and topic = turn.topic
          and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') = turn.tenant
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($10::boolean or (size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6) else suspicion >= 5 end) is not true)
        order by next_attempt_at, id
        limit turn.each
        for update skip locked
    ) as e
),
-- What tenants with few rows have left is divided among those that have more.
more as materialized (
    select topic_no, topic, tenant, (left_ + row_number() over (partition by topic_no order by n) - 1) / count(*) over (partition by topic_no) as each, at, id
    from (
        select topic_no, topic, tenant, n, (rows - sum(count(*)) over (partition by topic_no))::integer as left_, count(*) as found, each, max(next_attempt_at) as at,
            (array_agg(id order by next_attempt_at desc, id desc))[1] as id
        from first
        group by topic_no, topic, tenant, n, rows, each
    ) as turn
    where left_ > 0 and found = each
),
second as materialized (
    select e.*
    from more
    cross join lateral (
        select ctid, size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6::integer) else suspicion >= 5 end as exhausted, size_bytes
        from outbox.outbox_events
        where coalesce(live, false)
          and namespace = $1::text
          and topic = more.topic
          and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') = more.tenant
          and (next_attempt_at, id) > (more.at, more.id)
          and next_attempt_at <= now()
          and (status = 'pending' or (locked_until < now() or updated_at > now() + interval '1 minute'))
          and ($10::boolean or (size_bytes > $11::bigint or case status when 'pending' then attempts >= coalesce(max_attempts, $6) else suspicion >= 5 end) is not true)
        order by next_attempt_at, id
        limit more.each
        for update skip locked
    ) as e
),
-- The report has the last tenant of each topic whose walk ended before it came around.
taken as materialized (
    select array_agg(e.ctid) as rows, array_agg(e.ctid) filter (where e.exhausted) as spent, sum(e.size_bytes) > $7::bigint as cut,
        set_config('outbox.report', (select coalesce(json_object_agg(topic_no, tenant), '{}')::text from walk where n = rows), true) as report
    from (
        select ctid, exhausted, size_bytes from first
        union all
        select ctid, exhausted, size_bytes from second
    ) as e
),
