-- Counts the open dead letters of some groups, all of them.
-- $1 fingerprints; then the filter's.
select l.fingerprint, count(*)
from outbox.outbox_dead_letters as l
where l.fingerprint = any ($1::text[]) and /* filter */ true
group by l.fingerprint
