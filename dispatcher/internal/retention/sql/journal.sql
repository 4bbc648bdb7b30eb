-- Makes the days of the journal that come, and removes those that are older than its own retention: how many it
-- removed. The owner has set that retention, and the function has the owner's rights.
select outbox.outbox_journal_keep()
