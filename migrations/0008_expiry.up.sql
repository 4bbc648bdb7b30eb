-- oldest-reader: 1
--
-- Expiry: an event whose time is over when it is to be claimed becomes expired instead, and is never sent (CONTRACT C-18).

-- The last column: a row without has nothing of it, and what a claim changes stays in front of it in the WAL.
alter table outbox_events add column expires_at timestamptz;
comment on column outbox_events.expires_at is 'When the event is not worth sending any more: a claim from then on makes it expired. Null: the dispatcher''s expireAfter decides, and such a claim notes the time here.';

-- Whatever the old check lets in the new one does too: so it is not valid, and the table is not read.
alter table outbox_events drop constraint outbox_events_status;
alter table outbox_events add constraint outbox_events_status check (status in ('pending', 'processing', 'delivered', 'dead', 'withdrawn', 'expired')
    and (status = 'dead') = (dead_reason is not null)
    and (status = 'processing') = (locked_by is not null and locked_until is not null)) not valid;

-- outbox_expires_at is the time that the option expires stands for: a time, or an interval from when the event is due first. It is inlined.
create function outbox_expires_at(p_options jsonb, p_due timestamptz) returns timestamptz
language sql stable
as $$
    select case when p_options ->> 'expires' like '____-%' then (p_options ->> 'expires')::timestamptz else p_due + (p_options ->> 'expires')::interval end
$$;
revoke all on function outbox_expires_at from public;

-- What earlier migrations made is changed where it differs, each text as often as is said, so that nothing is here twice.
do $do$
declare
    v_change record;
    v_oid    oid;
    v_text   text;
begin
    for v_change in select *, name is distinct from lag(name) over () as first, name is distinct from lead(name) over () as last from (values
        ('enqueue_check', 1, $$object with maxAttempts, retry or aggregateSequence, or$$, $$object with maxAttempts, retry, aggregateSequence or expires, or$$),
        ('enqueue_check', 1, $$'retry', 'aggregateSequence')$$, $$'retry', 'aggregateSequence', 'expires')$$),
        ('enqueue_check', 1, $$Use maxAttempts, retry and aggregateSequence, or$$, $$Use maxAttempts, retry, aggregateSequence and expires, or$$),
        ('enqueue_check', 1, $$
        elsif p_options ? 'retry' then$$, $$
        elsif p_options ? 'expires' and (jsonb_typeof(p_options -> 'expires') <> 'string' or length(p_options ->> 'expires') > 40 or p_options ->> 'expires'
                !~ '^(([0-9]{1,9}([.][0-9]{1,9})?(ms|s|m|h|d))+|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}(:?[0-9]{2})?))$') then
            v_what := 'the option expires is neither a duration nor a time with its zone';
            v_hint := 'Write it such as "15m", "36h" or "7d", or "2030-01-31T18:00:00Z".';
        elsif p_options ? 'retry' then$$),
        ('enqueue', 1, $$    v_sequence     bigint;$$, $$    v_sequence     bigint;
    v_expires_at   timestamptz;$$),
        ('enqueue', 1, $$        v_retry          := p_options -> 'retry';$$, $$        v_retry          := p_options -> 'retry';
        v_expires_at     := outbox_expires_at(p_options, now() + p_delay);$$),
        ('enqueue', 2, $$payload, next_attempt_at)$$, $$payload, next_attempt_at, expires_at)$$),
        ('enqueue', 2, $$p_payload, now() + p_delay)$$, $$p_payload, now() + p_delay, v_expires_at)$$),
        ('enqueue_rows', 1, $$next_attempt_at timestamp with time zone)$$, $$next_attempt_at timestamp with time zone, expires_at timestamp with time zone)$$),
        ('enqueue_rows', 1, $$u.payload, now() + coalesce(u.delay, '0')$$, $$u.payload, now() + coalesce(u.delay, '0'),
        case when p_options <> '{}' then outbox_expires_at(case jsonb_typeof(p_options) when 'array' then p_options -> (u.n - 1)::integer else p_options end, now() + coalesce(u.delay, '0')) end$$),
        ('enqueue_batch', 4, $$payload, next_attempt_at$$, $$payload, next_attempt_at, expires_at$$),
        -- The journal: only a claim expires an event, and none before its time.
        ('outbox_journal_changed', 1, $$
            when a.status = 'withdrawn'$$, $$
            when b.status in ('pending', 'processing') and a.status = 'expired' and a.expires_at <= a.updated_at then 'expire'
            when a.status = 'withdrawn'$$),
        -- A dead event whose time is over needs a new one, from its turn in the replay.
        ('outbox_replay_begin', 1, $$
    with done as ($$, $$
    if p_action = 'replay' and not coalesce(p_filter ? 'expires', false) then
        select count(*) into v_done from outbox_dead_letters as dead_letter join outbox_events as event on event.id = dead_letter.event_id
        where dead_letter.id = any (p_dead_letters) and dead_letter.namespace = p_namespace and event.status = 'dead' and event.expires_at <= now();
        if v_done > 0 then
            raise exception 'outbox: the time of % of the events is over, so that a replay would not send them; give them a new one: expires, such as 1h', v_done
                using errcode = 'invalid_parameter_value';
        end if;
    end if;
    with done as ($$),
        ('outbox_replay_step', 1, $$next_attempt_at = now(), updated_at = now()$$, $$next_attempt_at = now(), updated_at = now(),
            expires_at = case when v_replay.filter ? 'expires' and event.expires_at <= now() then now() + (v_replay.filter ->> 'expires')::interval else event.expires_at end$$),
        ('outbox_replay_observe', 1, $$coalesce(event.status = 'withdrawn', false) as withdrawn$$, $$coalesce(event.status in ('withdrawn', 'expired'), false) as withdrawn$$),
        ('outbox_replay_observe', 1, $$when event.status = 'withdrawn' then 'gone'$$, $$when event.status in ('withdrawn', 'expired') then 'gone'$$)
    ) as change (name, times, was, becomes) loop
        if v_change.first then
            select oid, pg_get_functiondef(oid) into strict v_oid, v_text from pg_proc where pronamespace = current_schema()::regnamespace and proname = v_change.name;
        end if;
        if length(v_text) - length(replace(v_text, v_change.was, '')) <> v_change.times * length(v_change.was) then
            raise exception 'outbox: the function % is not as the migrations before this one made it; restore it', v_change.name;
        end if;
        v_text := replace(v_text, v_change.was, v_change.becomes);
        if v_change.last then
            if v_change.name = 'enqueue_rows' then -- its result has one column more
                execute format('drop function %s', v_oid::regprocedure);
            end if;
            execute v_text;
        end if;
    end loop;
end
$do$;
revoke all on function enqueue_rows from public;

comment on column outbox_journal.operation is 'insert, claim, ack, nack, dead, expire, release, extend, replay, withdraw, delete (by retention); resolve, reopen and forget, of its dead letter; edit, of what never changes, and change, for what no engine does; truncate; checkpoint, where the journal begins.';
comment on column outbox_replays.gone is 'How many have no row any more that was delivered or could be put back, were withdrawn, or have expired.';
comment on column outbox_sweeps.withdrawn is 'Withdrawn and expired rows that were removed, ever.';
comment on column outbox_sweeps.expired is 'Dead letters that retention resolved as expired, ever: deadUnresolved. An expired event is another matter.';
