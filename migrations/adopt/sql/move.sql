do $adopt$
declare
    r       record;
    v_moved integer := 0;
begin
    for r in select * from {table} as t where {open} order by {order} loop
        {body}
    end loop;
    perform set_config('outbox.adopt_moved', v_moved::text, true);
end
$adopt$
