-- Removes items of replays that finished long ago, a bounded number, and of replays that were not waited for:
-- they began long ago, at least 30 days, and each item had its turn. The replay's row
-- stays: it says who did what and why, and with which outcome; to run it again does nothing.
-- $1 age; $2 namespace, empty for all; $3 how many rows.
with old as materialized (
    select item.row
    from outbox.outbox_replays as replay
    cross join lateral (
        select ctid as row from outbox.outbox_replay_items where replay_id = replay.id limit $3::integer
    ) as item
    where ($2::text = '' or namespace = $2::text)
      and (finished_at < now() - $1::interval
          or finished_at is null and began_at < now() - greatest($1::interval, '30 days')
              and not exists (select from outbox.outbox_replay_items where replay_id = replay.id and state = 'waiting'))
    limit $3::integer
),
gone as (
    delete from outbox.outbox_replay_items where ctid = any (array(select row from old))
    returning 1
)
select count(*) from gone
