-- Begins an operation on the dead letters of the filter, in the order of insertion: its index then grows at its end.
-- CONDITION is that of the filter.
-- $1 id; $2 namespace; $3 action; $4 reason; $5 who requested it; $6 filter; $7 rate; $8 canary; $9 the percentage of
-- failures at which it stops; $10 how many at most, null for all.
select outbox.outbox_replay_begin($1::uuid, $2::text, $3::text, $4::text, $5::text, $6::jsonb, $7::integer, $8::integer, $9::integer, array(
    select l.id from outbox.outbox_dead_letters as l
    where CONDITION
    order by coalesce(l.seq, 0), l.id limit $10::integer
))
