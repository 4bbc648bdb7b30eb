-- Counts open dead letters by what they are about, all of them in one pass: the largest count first.
-- $1 what: tenant, type or aggregate; $2 most counts, and one; then the filter's.
select coalesce(case $1::text
           when 'tenant' then l.tenant_id::text
           when 'type' then l.event_type
           else concat_ws('/', l.aggregate_type, l.aggregate_id)
       end, '') as value,
       count(*), count(distinct l.fingerprint), min(l.dead_at), max(l.dead_at)
from outbox.outbox_dead_letters as l
where /* filter */ true
group by value
order by count(*) desc, value
limit $2::integer
