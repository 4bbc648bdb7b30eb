-- What the tables take on disk, with their indexes and what is stored out of line. It reads no table.
select relname::text, pg_total_relation_size(oid)
from pg_class
where oid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)
