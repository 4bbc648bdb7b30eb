-- Counts the backlog of topics, each count up to a cap and one (CONTRACT C-96).
-- $1 namespace; $2 topics; $3 cap.
select wanted.topic, due.pending, due.processing, scheduled.n, scheduled.retrying, dead.n, oldest.created_at, oldest.next_attempt_at, now()
from unnest($2::text[]) as wanted (topic)
cross join lateral (
    select count(*) filter (where status = 'pending') as pending,
           count(*) filter (where status = 'processing') as processing
    from (
        select status from outbox.outbox_events
        where live and namespace = $1::text and topic = wanted.topic and next_attempt_at <= now()
        order by next_attempt_at, id
        limit $3::integer + 1
    ) as front
) as due
cross join lateral (
    -- A row that failed has an attempt or, where the attempt was given back, an error.
    select count(*) as n, count(*) filter (where attempts > 0 or last_error is not null) as retrying
    from (
        select attempts, last_error from outbox.outbox_events
        where live and namespace = $1::text and topic = wanted.topic and next_attempt_at > now()
        limit $3::integer + 1
    ) as later
) as scheduled
cross join lateral (
    select count(*) as n
    from (
        select from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic = wanted.topic
        limit $3::integer + 1
    ) as open
) as dead
left join lateral (
    -- Within what every reader has a time for: an adopted row may be due since -infinity.
    select least(greatest(created_at, 'epoch'), '9999-12-31') as created_at, greatest(next_attempt_at, 'epoch') as next_attempt_at
    from outbox.outbox_events
    where live and namespace = $1::text and topic = wanted.topic and next_attempt_at <= now() and status = 'pending'
    order by outbox_events.next_attempt_at, id
    limit 1
) as oldest on true
