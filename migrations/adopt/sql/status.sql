-- Their rows since the start, and which of them have a note, in one snapshot.
with rows as (
    select count(*) as rows, count(*) filter (where not note.refused) as notes, count(*) filter (where note.their_id is null) as missing
    from {table} as r
    left join (
        select their_id, bool_or(refused is not null) as refused from outbox_adopted where adoption = {name} group by their_id
    ) as note on note.their_id = r.{id}::text
    where {counted}
)
select rows.*, (select count(*) from outbox_adopted where adoption = {name} and refused is not null) as refused,
    (select count(*) from {table} as r where {queued}) as waiting,
    (select count(*) from outbox_adopted as a join outbox_events as e on e.id = a.event_id
        where a.adoption = {name} and a.live and e.status in ('pending', 'processing')) as events,
    (select coalesce(json_agg(json_build_object('id', their_id, 'reason', refused)), '[]')::text
        from (select their_id, refused from outbox_adopted where adoption = {name} and refused is not null limit 10) as first) as refusals,
    now() as observed_at
from rows
