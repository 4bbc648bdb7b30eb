insert into {schema}processed_event_holds as h (hold, consumer_id, reason)
values ($1, nullif($2, ''), $3)
on conflict (hold) do update set reason = excluded.reason
where h.released_at is null and h.consumer_id is not distinct from excluded.consumer_id
