-- name: claim_fair
-- claim.sql that gives each tenant of a topic its turn (CONTRACT C-37). claim_parts.sql has most of the arguments. $4 is not
-- used; $5 the tenant after which each topic begins; $13 and $14 tenants that are left alone, each with the number of its
-- topic, from 1; $15 dispatcher, $16 time for each event of a tenant, null for no limit, and $17 how many it may have at
-- once. Rows without a tenant are those of the tenant of zeros.
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
-- A tenant whose rate is used, or that another claim counts for now, has no turn. One that is new is counted for from the
-- next claim on: so each count is of a row that this claim has locked. They are added in one order, so that no two claims
-- wait for each other. A count that is further ahead than claims of this rate put it, and a minute for those that began earlier, is
-- of a lower rate, or of a clock that was ahead (CONTRACT C-3): such a tenant has used nothing.
rated as materialized (
    select w.topic_no, w.tenant, r.permits
    from walk as w cross join lateral (
        select floor(extract(epoch from now() + $17::integer * $16::interval - greatest({used}, now())) / extract(epoch from $16::interval))::integer as permits
        from outbox.outbox_rates
        where namespace = $1::text and dispatcher = $15::text and topic = w.topic and tenant = w.tenant
          and {used} <= now() + ($17::integer - 1) * $16::interval
        for update skip locked
    ) as r
    where $16::interval is not null and w.n > 0
),
added as (
    insert into outbox.outbox_rates (namespace, dispatcher, topic, tenant, used_until)
    select $1::text, $15::text, w.topic, w.tenant, now()
    from walk as w
    where $16::interval is not null and w.n > 0 and not exists (
        select from outbox.outbox_rates as r
        where r.namespace = $1::text and r.dispatcher = $15::text and r.topic = w.topic and r.tenant = w.tenant
    )
    order by w.topic, w.tenant
    on conflict do nothing
),
-- The rows of a topic are divided among its tenants; the first ones have what does not divide.
turns as materialized (
    select topic_no, topic, rows, tenant, n, coalesce(permits, 2147483647) as permits,
        least(coalesce(permits, 2147483647), (rows + row_number() over topic_turns - 1) / count(*) over (partition by topic_no)) as each
    from walk left join rated using (topic_no, tenant)
    where n > 0 and ($16::interval is null or permits is not null) and not exists (select from unnest($13::integer[], $14::uuid[]) as full_ (topic_no, tenant) where full_.topic_no = walk.topic_no and full_.tenant = walk.tenant)
    window topic_turns as (partition by topic_no order by n)
),
first as materialized (
    select turn.topic_no, turn.topic, turn.rows, turn.tenant, turn.n, turn.permits, turn.each, e.*
    from turns as turn
    cross join lateral (
        select ctid, next_attempt_at, id, {exhausted} as exhausted, size_bytes
        from outbox.outbox_events
        where coalesce(live, false)
          and namespace = $1::text
          and topic = turn.topic
          and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') = turn.tenant
          and {claimable}
        order by next_attempt_at, id
        limit turn.each
        for update skip locked
    ) as e
),
-- What tenants with few rows have left is divided among those that have more.
more as materialized (
    select topic_no, topic, tenant, least(permits - each, (left_ + row_number() over (partition by topic_no order by n) - 1) / count(*) over (partition by topic_no)) as each, at, id
    from (
        select topic_no, topic, tenant, n, permits, (rows - sum(count(*)) over (partition by topic_no))::integer as left_, count(*) as found, each, max(next_attempt_at) as at,
            (array_agg(id order by next_attempt_at desc, id desc))[1] as id
        from first
        group by topic_no, topic, tenant, n, rows, permits, each
    ) as turn
    where left_ > 0 and found = each and permits > each
),
second as materialized (
    select more.topic, more.tenant, e.*
    from more
    cross join lateral (
        select ctid, {exhausted} as exhausted, size_bytes
        from outbox.outbox_events
        where coalesce(live, false)
          and namespace = $1::text
          and topic = more.topic
          and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') = more.tenant
          and (next_attempt_at, id) > (more.at, more.id)
          and {claimable}
        order by next_attempt_at, id
        limit more.each
        for update skip locked
    ) as e
),
-- The report has the last tenant of each topic whose walk ended before it came around, and the topics with a tenant that has
-- used its rate.
given as materialized (
    select array_agg(e.ctid) as rows, array_agg(e.ctid) filter (where e.exhausted) as spent, sum(e.size_bytes) > $7::bigint as cut,
        set_config('outbox.report', json_build_object(
            'ends', (select coalesce(json_object_agg(topic_no, tenant), '{}') from walk where n = rows),
            'overRate', (
                select coalesce(json_agg(topic), '[]')
                from walk as share
                where $16::interval is not null and n = 0 and exists (
                    select from walk as w left join rated using (topic_no, tenant)
                    where w.topic_no = share.topic_no and n > 0 and permits is null and exists (
                        select from outbox.outbox_events
                        where coalesce(live, false) and namespace = $1::text and topic = w.topic and status = 'pending' and next_attempt_at <= now()
                          and coalesce(tenant_id, '00000000-0000-0000-0000-000000000000') = w.tenant
                    )
                )
            ))::text, true) as report
    from (
        select ctid, exhausted, size_bytes from first
        union all
        select ctid, exhausted, size_bytes from second
    ) as e
),
{fitting}
-- What is leased counts for its tenant. A claim that comes late, by half the time of an event at most, is made up for.
used as (
    update outbox.outbox_rates as r
    set used_until = greatest({used}, now() - $16::interval / 2) + u.events * $16::interval
    from (
        select topic, tenant, count(*) as events
        from (
            select topic, tenant, ctid, exhausted from first
            union all
            select topic, tenant, ctid, exhausted from second
        ) as e
        where exhausted is not true and (not (select cut from given) or ctid = any (array(select row from fitting)))
        group by topic, tenant
    ) as u
    where $16::interval is not null and r.namespace = $1::text and r.dispatcher = $15::text and r.topic = u.topic and r.tenant = u.tenant
),
{lease}
