do $adopt$
declare
    r        record;
    v_event  uuid;
    v_events uuid[] := '{}';
begin
    for r in select * from {table} as t where {open} order by {order} loop
        {body}
    end loop;
    perform outbox_adopt_moved({name}, v_events);
end
$adopt$
