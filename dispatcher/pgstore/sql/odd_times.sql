-- Names live rows whose times cannot be right, at both ends of the range of each topic.
-- $1 namespace; $2 topics; $3 most rows to look at from each end; $4 how many to name.
with odd as (
    select live.topic, event.id, event.next_attempt_at, case
        when next_attempt_at > '9999-12-31' then 'never due'
        when next_attempt_at < 'epoch' then 'due since before 1970'
        when created_at > now() + interval '1 minute' then 'created in the future, and due then'
        when created_at < 'epoch' then 'created before 1970'
        when status = 'processing' and (updated_at > now() + interval '1 minute' or locked_until > '9999-12-31') then 'leased in the future'
    end as what
    from unnest($2::text[]) as live (topic)
    cross join lateral (
        (
            select id, next_attempt_at, created_at, updated_at, locked_until, status from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic
            order by next_attempt_at, id
            limit $3::integer
        )
        union
        (
            select id, next_attempt_at, created_at, updated_at, locked_until, status from outbox.outbox_events
            where live and namespace = $1::text and topic = live.topic
            order by next_attempt_at desc, id desc
            limit $3::integer
        )
    ) as event
)
select topic, id, what, next_attempt_at::text, count(*) over ()
from odd
where what is not null
order by topic, id
limit $4::integer
