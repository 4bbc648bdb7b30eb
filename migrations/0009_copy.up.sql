-- oldest-reader: 1
--
-- Copying: a dispatcher with the sink copy adds the events of its topics to other topics of their namespace (CONTRACT C-19).

alter table outbox_workers add column copies text[] not null default '{}';
comment on column outbox_workers.copies is 'The topics that it copies its events to: the sink copy.';

-- outbox_copy_id is the id of an event's copy in a topic, as text. It follows from the two, so there is one; and it begins with the time in
-- the original's, so that new copies are next to each other in the primary key.
create function outbox_copy_id(p_original text, p_topic text) returns text
language sql immutable
as $$
    select overlay(overlay(md5(p_original || ' ' || p_topic)::uuid::text placing left(p_original, 14) || '8' from 1) placing 'a' from 20)
$$;

-- Copies are older than they are due, and have first_due_at already.
create or replace trigger outbox_values before insert on outbox_events
    for each row when (new.size_bytes is null or new.next_attempt_at > new.created_at and new.first_due_at is null) execute function outbox_values();

-- outbox_copy adds copies of events to the topics, in the order of the originals, and returns of which events, and how many copies are new. With a worker the events
-- are those that it holds by these leases: they are delivered in the same statement, or removed. Without one they are those that are delivered already.
--
-- The copy of a copy is one of the first original: its id and topic are in the headers originalid and originaltopic, which count where the event's
-- own id follows from them. So no topic has an event twice, whichever ways lead there, and a circle ends. It runs with the owner's rights.
create function outbox_copy(p_topics text[], p_ids uuid[], p_leases bigint[] default null, p_worker uuid default null, p_delete boolean default false,
    out originals uuid[], out copied bigint)
language plpgsql
security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_sort = on set jit = off
as $$
#variable_conflict use_column
begin
    if exists (select from unnest(p_topics) as topic where coalesce(length(topic), 0) not between 1 and 255) then
        raise exception 'outbox: a topic to copy to has no name, or one of more than 255 characters'
            using errcode = 'invalid_parameter_value', hint = 'Give each a name of 1 to 255 characters.';
    end if;
    if p_delete then
        perform set_config('outbox.removal', 'ack', true); -- for the journal
    end if;
    with acked as (
        update outbox_events as e
        set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
        from unnest(p_ids, p_leases) as held (id, lease)
        where not p_delete and e.id between held.id and held.id and e.lease = held.lease and e.locked_by = p_worker
        returning e.*
    ),
    removed as (
        delete from outbox_events as e
        using unnest(p_ids, p_leases) as held (id, lease)
        where p_delete and e.id between held.id and held.id and e.lease = held.lease and e.locked_by = p_worker
        returning e.*
    ),
    original as (
        select * from acked
        union all
        select * from removed
        union all
        select e.* from outbox_events as e where p_worker is null and e.id = any (p_ids) and e.status = 'delivered'
    ),
    added as (
        insert into outbox_events (id, created_at, key_hash, aggregate_sequence, size_bytes, max_attempts, tenant_id, namespace, topic, event_type, aggregate_type,
            aggregate_id, partition_key, dedupe_key, retry, headers, payload, first_due_at, expires_at)
        select copy.id, created_at, outbox_key_hash(namespace, copy.topic, partition_key, aggregate_id), aggregate_sequence,
            size_bytes + octet_length(copy_headers::text) - octet_length(headers::text), max_attempts, tenant_id, namespace, copy.topic, event_type, aggregate_type,
            aggregate_id, partition_key, dedupe_key, retry, copy_headers, payload, now(), expires_at
        from (
            select *, headers || jsonb_build_object('originalid', first_id, 'originaltopic', first_topic) as copy_headers
            from (
                select *, case when is_copy then headers ->> 'originalid' else id::text end as first_id, case when is_copy then headers ->> 'originaltopic' else topic end as first_topic
                from (
                    select *, headers ? 'originalid' and id::text = outbox_copy_id(headers ->> 'originalid', topic) as is_copy from original offset 0 -- each is computed once
                ) as o offset 0
            ) as o
            order by seq offset 0
        ) as o
        cross join lateral (select topic, outbox_copy_id(o.first_id, topic)::uuid as id from unnest(p_topics) as topic offset 0) as copy
        where copy.topic not in (o.topic, o.first_topic)
          and not exists (select from outbox_events as there where there.id = copy.id) -- by "on conflict" each row would be written to the WAL twice
        order by o.seq
        returning id
    )
    select (select array_agg(id) from original), (select count(*) from added) into originals, copied;
end
$$;

revoke all on function outbox_copy_id, outbox_copy from public;
