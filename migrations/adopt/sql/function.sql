create or replace function {function}() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $adopt$
declare
    r         record;
    v_changed boolean := false;
    v_event   uuid;
begin
    if tg_op = 'DELETE' then
        delete from outbox_adopted where adoption = {name} and their_id = old.{id}::text and {gone};
        return null;
    elsif tg_op = 'UPDATE' then
        v_changed := old.{payloadColumn}::text is distinct from new.{payloadColumn}::text;
    end if;
    r := new;
    {body}
    return null;
end
$adopt$
