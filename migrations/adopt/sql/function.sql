create or replace function {function}() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $adopt$
declare
    v_id     text;
    v_row    json;
    v_open   boolean;
    v_event  uuid;
    v_reason text;
    v_new    boolean := tg_op = 'INSERT';
begin
    {body}
    return null;
end
$adopt$
