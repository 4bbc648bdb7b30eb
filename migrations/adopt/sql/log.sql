do $adopt$
declare
    r        record;
    v_row    json;
    v_event  uuid;
    v_events uuid[] := '{}';
begin
    for v_row in {rows} loop
        select * into r from json_populate_record(null::{table}, v_row);
        {body}
    end loop;
    perform outbox_adopt_moved({name}, v_events);
end
$adopt$
