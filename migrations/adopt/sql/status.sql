-- Their rows since the start and the notes of them, in one snapshot.
with theirs as (
    select count(*) as rows, count(*) filter (where not exists (
        select from outbox_adopted as a where a.adoption = {name} and a.their_id = r.{id}::text)) as missing
    from {table} as r
    where {counted}
), ours as (
    select count(*) filter (where {ourCounted} and refused is null) as rows,
        count(*) filter (where refused is not null) as refused,
        count(*) filter (where {ourCounted} and not exists (select from {table} as r where r.{id} = a.their_id::{idType})) as extra
    from outbox_adopted as a
    where adoption = {name}
)
select theirs.rows, ours.rows, theirs.missing, ours.extra, ours.refused,
    (select count(*) from {table} as r where {open}),
    (select count(*) from outbox_adopted as a join outbox_events as e on e.id = a.event_id
        where a.adoption = {name} and a.live and e.status in ('pending', 'processing')),
    (select coalesce(json_agg(json_build_object('id', their_id, 'reason', refused)), '[]')::text
        from (select their_id, refused from outbox_adopted where adoption = {name} and refused is not null limit 10) as first),
    now()
from theirs, ours
