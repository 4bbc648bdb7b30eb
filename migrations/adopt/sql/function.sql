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
        if {keep} then
            -- What is left waits. As in outbox_adopt, notes whose events are delivered by now go from time to time.
            with kept as (
                update outbox_adopted set counted = false, their_row = 'null' where adoption = {name} and their_id = old.{id}::text
                returning seq
            )
            select coalesce(bool_or(seq % 20 = 0), false) into v_prune from kept;
            if v_prune and current_setting('transaction_isolation') = 'read committed' then
                perform outbox_adopt_prune({name});
            end if;
        end if;
        return null;
    elsif tg_op = 'UPDATE' then
        v_changed := old.{payloadColumn}::text is distinct from new.{payloadColumn}::text;
    end if;
    r := new;
    {body}
    return null;
end
$adopt$
