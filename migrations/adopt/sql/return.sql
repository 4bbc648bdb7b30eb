do $adopt$
declare
    e          record;
    v_taken    uuid[];
    v_left     bigint; -- the seq of the newest event that is not taken
    v_there    boolean;
    v_returned integer := 0;
begin
    select array_agg(id) into v_taken
    from (
        select event.id
        from outbox_adopted as a
        join outbox_events as event on event.id = a.event_id
        where a.adoption = {name} and a.live and event.live and {there}
            -- A lease that is over counts as given up, as a claim has it: no dispatcher may be there to claim it.
            and (event.status = 'pending'
                or event.status = 'processing' and (event.locked_until < now() or event.updated_at > now() + interval '1 minute'))
        for update of event
    ) as taken;
    -- Where a unique index of theirs lets one of several rows be open, or where rows are inserted again, of which several may
    -- have had one id, an older event waits for a newer one that is not taken: its row would be there when the delivery of that
    -- fails, and the newer one be lost. A statement of its own sees what dispatchers have claimed while the first one ran.
    if {newest} and ({deletes} or exists (
        select from pg_index as i
        join pg_attribute as id on id.attrelid = i.indrelid and id.attname = {idName}
        where i.indisunique and (i.indnkeyatts > 1 or i.indkey[0] <> id.attnum)
            and i.indrelid in (select {regclass}::regclass union all select relid from pg_partition_tree({regclass}::regclass))
    )) then
        select max(event.seq) into v_left
        from outbox_adopted as a
        join outbox_events as event on event.id = a.event_id
        where a.adoption = {name} and a.live and event.live and {there}
            and not exists (select from unnest(v_taken) as taken where taken = event.id);
    end if;
    for e in
        select a.their_id, a.version, a.live, a.their_row, event.id, event.next_attempt_at, event.attempts, event.namespace, event.topic
        from outbox_adopted as a
        left join outbox_events as event on event.id = a.event_id
        where a.adoption = {name} and case when a.live then event.id = any(v_taken) and (v_left is null or event.seq > v_left)
            else {refused} and a.their_row is not null end
        order by {order}
    loop
        begin
            {give}
            if e.live then
                -- The journal hears of it first: no engine removes an event that waits.
                insert into outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
                select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), e.id, 'adopt', e.namespace, e.topic, session_user
                from outbox_journal_settings where enabled;
                delete from outbox_events where id = e.id;
            end if;
            update outbox_adopted set live = false, their_row = null where adoption = {name} and their_id = e.their_id and version = e.version;
        exception
            when transaction_rollback then
                raise;
            when others then
                {stays}
        end;
    end loop;
    perform set_config('outbox.adopt_moved', v_returned::text, true);
end
$adopt$
