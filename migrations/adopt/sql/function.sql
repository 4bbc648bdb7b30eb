create or replace function {function}() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $adopt$
declare
    r         record;
    v_changed boolean := true; -- a row that is inserted is a new one, also when it has the id of one that was deleted
    v_event   uuid;
    v_prune   boolean;
begin
    if tg_op = 'DELETE' then
        delete from outbox_adopted where adoption = {name} and their_id = old.{id}::text and {gone};
{keep}        return null;
    elsif tg_op = 'UPDATE' then
        v_changed := old.{payloadColumn}::text is distinct from new.{payloadColumn}::text;
    end if;
    r := new;
    {body}
    return null;
end
$adopt$
