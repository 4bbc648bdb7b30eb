-- How the journal is set, how many pages the table of events has, and which triggers write the journal.
select enabled, since, now(), pg_relation_size('outbox.outbox_events') / current_setting('block_size')::bigint,
       array(select tgname::text from pg_trigger where tgrelid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)
           and tgname like 'outbox\_journal\_%' and tgenabled in ('O', 'A') order by 1)
from outbox.outbox_journal_settings
