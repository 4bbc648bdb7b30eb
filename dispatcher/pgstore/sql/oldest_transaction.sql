-- Lists what keeps vacuum from removing rows of this database that are gone: whatever may still look
-- at them. since is null where the server does not show it; then mark stays the same for as long as
-- the same thing is held.
--
-- Every login may see all of them. When the transactions of other roles began is for members of
-- pg_read_all_stats. Not listed: vacuum itself, autovacuum, short transactions of this dispatcher's own
-- processes, and the catalog_xmin of slots, which holds back the catalogs only.
select 'Session' as kind, concat('pid ', pid, ' (' || nullif(application_name, '') || ')') as name,
       xact_start as since, coalesce(backend_xid, backend_xmin)::text as mark, now()
from pg_stat_activity
where datname = current_database()
  and usesysid is not null -- a login's, not a worker of the server
  and coalesce(backend_xid, backend_xmin) is not null
  and backend_type is distinct from 'walsender'
  and pid <> pg_backend_pid()
  -- A dispatcher's statements end within 10 s. A longer transaction is one whose process is frozen.
  and (application_name is distinct from nullif(current_setting('application_name'), '') or xact_start < now() - interval '10 seconds')
  and pid not in (select pid from pg_stat_progress_vacuum)
union all
select 'PreparedTransaction', gid, prepared, '', now()
from pg_prepared_xacts
where database = current_database()
union all
select 'ReplicationSlot', slot_name, null, xmin::text, now()
from pg_replication_slots
where xmin is not null
union all
select 'Standby', application_name, null, backend_xmin::text, now()
from pg_stat_replication
where backend_xmin is not null
