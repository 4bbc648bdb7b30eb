do $adopt$
declare
    e          record;
    v_returned integer := 0;
begin
    for e in
        select a.their_id, a.version, event.id, event.next_attempt_at, event.attempts, event.namespace, event.topic
        from outbox_adopted as a
        join outbox_events as event on event.id = a.event_id
        where a.adoption = {name} and a.live and {there}
            -- A lease that is over counts as given up, as a claim has it: no dispatcher may be there to claim it.
            and (event.status = 'pending'
                or event.status = 'processing' and (event.locked_until < now() or event.updated_at > now() + interval '1 minute'))
        order by event.seq desc
        for update of event
    loop
        -- The newest of a row, or of those that a unique index of theirs lets be open alone, is open again. It
        -- has replaced the others, as it would have done in their table.
        begin
            update {table} as r set {reopen} where {id} = e.their_id::{idType} and not ({open});
            if found then
                v_returned := v_returned + 1;
            end if;
        exception when unique_violation then
            null;
        end;
        -- The journal hears of it first: no engine removes an event that waits.
        insert into outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
        select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), e.id, 'adopt', e.namespace, e.topic, session_user
        from outbox_journal_settings where enabled;
        delete from outbox_events where id = e.id;
        update outbox_adopted set live = false where adoption = {name} and their_id = e.their_id and version = e.version;
    end loop;
    perform set_config('outbox.adopt_moved', v_returned::text, true);
end
$adopt$
