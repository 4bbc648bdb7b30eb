-- Counts what a replay would put back or discard, and what it would skip.
-- The arguments are those of the dead letters that match.
select count(*) filter (where skipped is null), count(*) filter (where skipped = 'gone'), count(*) filter (where skipped = 'not_dead')
from (/* dead_letters */) as matched
