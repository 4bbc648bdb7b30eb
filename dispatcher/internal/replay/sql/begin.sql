-- Writes down the set of a replay. The order is that in which its items have their turn: two of the three indexes then
-- grow at their end, which halves what the insert costs.
-- The first argument is the action, the second the replay; then those of the dead letters that match.
insert into outbox.outbox_replay_items (replay_id, dead_letter_id, event_id, key_hash, seq, state, skipped)
select $2::uuid, dead_letter_id, event_id, key_hash, seq, case when skipped is null then 'waiting' else 'skipped' end, skipped
from (/* dead_letters */) as matched
order by seq, dead_letter_id
