-- Lists the namespace's topics that have live rows and, if $2, those that have open dead letters.
-- Each topic is one look into an index: the next one after the last.
-- $1 namespace; $2 whether to add those of dead letters.
with recursive live (topic) as (
    (
        select topic from outbox.outbox_events
        where live and namespace = $1::text
        order by topic limit 1
    )
    union all
    select (
        select topic from outbox.outbox_events
        where live and namespace = $1::text and topic > live.topic
        order by topic limit 1
    )
    from live
    where live.topic is not null
),
dead (topic) as (
    (
        select topic from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and $2::boolean
        order by topic limit 1
    )
    union all
    select (
        select topic from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic > dead.topic
        order by topic limit 1
    )
    from dead
    where dead.topic is not null
)
select topic from live where topic is not null
union
select topic from dead where topic is not null
order by topic
