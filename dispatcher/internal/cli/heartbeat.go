package cli

import (
	"context"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

const (
	// heartbeatEvery is how often a worker notes in the database that it runs.
	heartbeatEvery = 15 * time.Second
	// heartbeatTimeout bounds that statement, and leaveTimeout the one at the stop: nothing depends on them.
	heartbeatTimeout = 5 * time.Second
	leaveTimeout     = time.Second
)

// heartbeat keeps this worker's row in the table outbox_workers, with the recent outcomes of its deliveries, until ctx ends,
// and then removes it. Failures are logged at debug only: claims report whether the database responds.
func (e *process) heartbeat(ctx context.Context, w pgstore.WorkerInfo, outcomes *tally) {
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	for ctx.Err() == nil {
		w.Delivered, w.Failed = outcomes.lately(time.Now())
		w.Paused = e.Snapshot().Paused
		limited, cancel := context.WithTimeout(ctx, heartbeatTimeout)
		if err := e.store.Heartbeat(limited, w); err != nil {
			e.log.Debug("this worker's row in outbox_workers was not renewed", "error", err)
		}
		cancel()
		select {
		case <-beat.C:
		case <-ctx.Done():
		}
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := e.store.Leave(limited); err != nil {
		e.log.Debug("this worker's row in outbox_workers was not removed", "error", err)
	}
}
