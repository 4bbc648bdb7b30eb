insert into {schema}event_tokens as t (tracking_id, consumer_id, fencing_token)
values ($1, $2, $3)
on conflict (tracking_id, consumer_id) do update
set fencing_token = excluded.fencing_token, seen_at = now()
where t.fencing_token < excluded.fencing_token
