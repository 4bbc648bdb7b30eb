-- The dead letters that a replay is for: the condition is that of the filter. A replay leaves out, with the reason, what
-- it could not put back.
-- $1 action.
select l.id as dead_letter_id, l.event_id, l.key_hash, coalesce(l.seq, 0) as seq, case
    when $1::text = 'discard' then null
    when e.id is null then 'gone'
    when e.status <> 'dead' then 'not_dead'
end as skipped
from outbox.outbox_dead_letters as l
left join outbox.outbox_events as e on e.id = l.event_id
where CONDITION
