select outbox.outbox_sequences_behind()
