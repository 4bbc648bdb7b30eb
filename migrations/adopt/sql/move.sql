do $adopt$
declare
    v_id     text;
    v_row    json;
    v_open   boolean;
    v_event  uuid;
    v_events uuid[] := '{}';
    v_reason text;
    v_new    boolean := false;
begin
    for v_id, v_row in {rows} loop
        {body}
    end loop;
    perform set_config('outbox.adopt_moved', (select count(distinct id) from unnest(v_events) as id)::text, true);
end
$adopt$
