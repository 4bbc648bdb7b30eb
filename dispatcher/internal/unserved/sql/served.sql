-- $1 namespace, $2 topic: a dispatcher that serves it, and its pending events.
select (
        select coalesce(nullif(dispatcher, ''), worker::text) from outbox.outbox_workers
        where namespace = $1 and (topics = '{}' or $2 = any (topics)) and seen_at > now() - interval '1 minute' limit 1),
    (select count(*) from outbox.outbox_events where live and namespace = $1 and topic = $2 and status = 'pending')
