-- Adds a replay, or none when it is there already.
insert into outbox.outbox_replays (id, namespace, action, reason, requested_by, filter, rate, canary, abort_at, ordering)
values ($1::uuid, $2::text, $3::text, $4::text, $5::text, $6::jsonb, $7::integer, $8::integer, $9::integer, $10::text)
on conflict (id) do nothing
