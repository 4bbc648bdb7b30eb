-- lock_timeout bounds how long the insert waits for another delivery that has recorded the event and not yet
-- committed. It is set back in the same statement, since it is none of the effect's.
with before as materialized (
    select current_setting('lock_timeout') as lock_timeout, set_config('lock_timeout', $4::text, true)
), recorded as (
    insert into {schema}processed_events (tracking_id, consumer_id, fencing_token)
    select $1::uuid, $2::text, $3::bigint from before
    on conflict do nothing
    returning 1
)
select case when set_config('lock_timeout', before.lock_timeout, true) is not null then n end
from before, (select count(*) as n from recorded) as r
