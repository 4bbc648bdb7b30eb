with dead_letter as (
  update outbox.outbox_dead_letters set resolution = 'replayed', resolved_at = now(), resolved_by = current_user
  where event_id = 'ID' and resolution is null returning event_id)
update outbox.outbox_events set status = 'pending', attempts = 0, next_attempt_at = now(), dead_reason = null, last_error = null,
  failures = null, updated_at = now()
where id in (select event_id from dead_letter) and status = 'dead'
