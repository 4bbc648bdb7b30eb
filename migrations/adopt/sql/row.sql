begin
    {first}
    -- The row as it will be committed, and the very statement of the cut-over.
    select coalesce({open}, false), case when {open} then {call} end
    into v_open, v_event from {from};
    if not found then
        {none};
    elsif not v_open then
        raise sqlstate 'OB042'; -- it is noted alone
    end if;
    {mark}{then}
exception
    when transaction_rollback then
        raise; -- a serialization failure or a deadlock: only the whole transaction can be tried again
    when assert_failure or others then
        v_reason := case when sqlstate <> 'OB042' then sqlerrm end;
        begin
            perform outbox_adopt_note({name}, v_id, v_reason, v_row);
        exception
            when transaction_rollback then
                raise;
            when assert_failure or others then
                {failed}
        end;
end;
