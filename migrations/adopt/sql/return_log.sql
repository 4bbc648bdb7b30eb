do $adopt$
declare
    e          outbox_adopted;
    v_event    outbox_events;
    v_there    boolean;
    v_returned integer := 0;
begin
    -- Debezium sends what is inserted, and passes over what is deleted.
    for e in select * from outbox_adopted where adoption = {name} and their_row is not null order by seq loop
        if e.live then
            -- As in return.sql, a lease that is over counts as given up.
            select * into v_event from outbox_events
            where id = e.event_id and (status = 'pending'
                or status = 'processing' and (locked_until < now() or updated_at > now() + interval '1 minute'))
            for update;
            continue when not found;
            -- The journal hears of it first: no engine removes an event that waits.
            insert into outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
            select clock_timestamp(), pg_current_wal_insert_lsn(), pg_current_xact_id(), v_event.id, 'adopt', v_event.namespace, v_event.topic, session_user
            from outbox_journal_settings where enabled;
            delete from outbox_events where id = e.event_id;
        end if;
        delete from {table} where {id} = e.their_id::{idType};
        v_there := found;
        insert into {table} ({columns}) overriding system value
            select {columns} from json_populate_record(null::{table}, e.their_row);
        if not found then
            raise exception 'a trigger or a rule of table % keeps row % out, so this was undone; disable it, and go back again',
                {regclass}, e.their_id;
        end if;
        if not v_there then
            delete from {table} where {id} = e.their_id::{idType};
        end if;
        delete from outbox_adopted where adoption = {name} and their_id = e.their_id and version = e.version;
        v_returned := v_returned + 1;
    end loop;
    perform set_config('outbox.adopt_moved', v_returned::text, true);
end
$adopt$
