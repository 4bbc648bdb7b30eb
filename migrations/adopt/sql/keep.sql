        -- What is left waits. As in outbox_adopt, notes whose events are delivered by now go from time to time.
        with kept as (
            update outbox_adopted set counted = false, their_row = 'null' where adoption = {name} and their_id = old.{id}::text
            returning seq
        )
        select coalesce(bool_or(seq % 20 = 0), false) into v_prune from kept;
        if v_prune and current_setting('transaction_isolation') = 'read committed' then
            perform outbox_adopt_prune({name});
        end if;
