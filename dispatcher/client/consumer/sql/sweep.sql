with due as (
    select tracking_id, consumer_id
    from {schema}{table}
    where consumer_id = $1 and {column} < now() - make_interval(secs => $2::double precision)
      and not exists (
        select from {schema}processed_event_holds as h
        where h.released_at is null and (h.consumer_id = $1 or h.consumer_id is null))
    order by {column}
    limit $3
    for update skip locked
)
delete from {schema}{table} as e
using due
where e.tracking_id = due.tracking_id and e.consumer_id = due.consumer_id
