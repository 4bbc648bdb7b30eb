do $adopt$
declare
    r       record;
    v_row   json;
    v_moved integer := 0;
begin
    for v_row in {rows} loop
        select * into r from json_populate_record(null::{table}, v_row);
        {body}
    end loop;
    perform set_config('outbox.adopt_moved', v_moved::text, true);
end
$adopt$
