select outbox.outbox_fence_raise()
