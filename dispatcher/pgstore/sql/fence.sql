-- The last of a claim's settings: it ends the transaction with an error of its own while the fence is down (CONTRACT C-27).
-- What empties the table ends this session too, so one look is enough for the transaction.
, case when exists (select from outbox.outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin)
    then true else outbox.outbox_fence_down() end
