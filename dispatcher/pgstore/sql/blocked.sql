-- Finds the keys that have live rows behind an open dead letter (CONTRACT C-50).
-- $1 namespace; $2 topics; $3 how many dead letters to read of each; $4 how many keys to list.
with dead_letter as materialized (
    select wanted.topic, open.*, count(*) over (partition by wanted.topic) = $3::integer as cut
    from unnest($2::text[]) as wanted (topic)
    cross join lateral (
        select event_id, seq, key_hash, dead_at
        from outbox.outbox_dead_letters
        where resolution is null and namespace = $1::text and topic = wanted.topic
        order by fingerprint, dead_at
        limit $3::integer
    ) as open
),
blocked as materialized (
    select first.*
    from (select distinct on (key_hash) * from dead_letter where key_hash is not null order by key_hash, seq) as first
    cross join lateral (
        select from outbox.outbox_events
        where live and key_hash = first.key_hash and seq > first.seq
        order by seq
        limit 1
    ) as behind
)
select listed.topic, coalesce(nullif(e.partition_key, ''), e.aggregate_id, ''), listed.event_id, listed.dead_at,
       (select count(*) from blocked), (select coalesce(bool_or(cut), false) from dead_letter)
from (select * from blocked order by dead_at, event_id limit $4::integer) as listed
left join outbox.outbox_events as e on e.id = listed.event_id
order by listed.dead_at, listed.event_id
