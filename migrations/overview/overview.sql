-- The table of the Overview outbox contract, for its producers, over the outbox's own table. README.md is its page.
--
-- "dispatcher migrate up --overview" fills in what is in braces and runs this in one transaction.

-- attempt_count is the number of attempts that failed or were given up.
create or replace view outbox.events as
select e.id, e.topic, e.payload,
    case e.status when 'delivered' then 'processed' when 'dead' then 'failed' else e.status end as status,
    case when e.status in ('pending', 'dead') then e.attempts else greatest(e.attempts - 1, 0) end as attempt_count,
    e.next_attempt_at, e.created_at
from {schema}.outbox_events as e
where e.namespace = '{namespace}';

alter view outbox.events alter column status set default 'pending';
alter view outbox.events alter column attempt_count set default 0;
alter view outbox.events alter column next_attempt_at set default now();
alter view outbox.events alter column created_at set default now();

-- An INSERT enqueues, with the owner's rights, so that a producer needs no right but that on the view. What comes
-- back by RETURNING is the row as the view has it.
create or replace function {schema}.overview_enqueue() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $overview$
declare
    v_added record;
begin
    if tg_op <> 'INSERT' then
        raise exception 'outbox: outbox.events takes INSERT alone, and this is %', tg_op
            using errcode = 'feature_not_supported', hint = 'Dispatchers deliver these events and say what became of them: stop the worker of the table.';
    elsif coalesce(new.status, 'pending') <> 'pending' or coalesce(new.attempt_count, 0) <> 0 then
        raise exception 'outbox: an event that is inserted is pending, and no attempt was made'
            using errcode = 'invalid_parameter_value', hint = 'Leave out status and attempt_count.';
    elsif jsonb_typeof(new.payload) <> 'object' then
        raise exception 'outbox: the payload is not a mapping' using errcode = 'invalid_parameter_value', hint = 'Give a JSON object.';
    end if;
    select * into v_added from enqueue('{namespace}', new.topic, new.payload, p_id => new.id,
        p_delay => make_interval(secs => greatest(extract(epoch from new.next_attempt_at - now()), 0)::double precision), -- days have no fixed length
        p_options => '{"retry": {"strategy": "Linear", "base": "60s", "max": "24h"}}');
    if not v_added.inserted then
        raise exception 'outbox: the id % is there already', new.id using errcode = 'unique_violation', hint = 'Make a new id for each event.';
    end if;
    update outbox_events set max_attempts = 32767 where id = v_added.id; -- no dispatcher makes it dead by itself
    select * into new from outbox.events where id = v_added.id;
    return new;
end
$overview$;

revoke all on function {schema}.overview_enqueue from public;

create or replace trigger overview_enqueue instead of insert or update or delete on outbox.events
    for each row execute function {schema}.overview_enqueue();
