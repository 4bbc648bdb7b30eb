-- Lists the transactions that may still commit rows with a seq that they have drawn: to draw one, a transaction locks the
-- sequence until it ends. Which run of the server it is comes with them: numbers that a crash forgot are drawn again.
select coalesce(array_agg(virtualtransaction), '{}'), concat(extract(epoch from pg_postmaster_start_time()), ' ', pg_last_wal_replay_lsn())
from pg_locks
where locktype = 'relation'
  and database = (select oid from pg_database where datname = current_database())
  and relation = pg_get_serial_sequence('outbox.outbox_events', 'seq')::regclass
