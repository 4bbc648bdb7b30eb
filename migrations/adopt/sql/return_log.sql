do $adopt$
declare
    e          outbox_adopted;
    v_there    boolean;
    v_returned integer := 0;
begin
    -- Debezium sends what is inserted, and passes over what is deleted.
    for e in select * from outbox_adopted where adoption = {name} and their_row is not null order by seq loop
        if e.live then
            delete from outbox_events where id = e.event_id and status = 'pending';
            continue when not found;
        end if;
        delete from {table} where {id} = e.their_id::{idType};
        v_there := found;
        insert into {table} ({columns}) overriding system value
            select {columns} from json_populate_record(null::{table}, e.their_row);
        if not v_there then
            delete from {table} where {id} = e.their_id::{idType};
        end if;
        delete from outbox_adopted where adoption = {name} and their_id = e.their_id and version = e.version;
        v_returned := v_returned + 1;
    end loop;
    perform set_config('outbox.adopt_moved', v_returned::text, true);
end
$adopt$
