package main

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// stall is not a fault of the schedule: the machine was so busy that a process stood still for a while. A delivery may
// time out then, or a lease expire.
const stall kind = "stall"

// nap is not one either: a dispatcher stands still for a moment during a choke.
const nap kind = "nap"

const (
	stallTick = 50 * time.Millisecond
	// stallFrom is well above what a scheduler does, and well below every timeout of a run.
	stallFrom = 400 * time.Millisecond
)

// pause is one stall, as the process that stood still noticed it.
type pause struct {
	From, To time.Time
}

// noteStalls writes down when this process stood still, until ctx ends.
func noteStalls(ctx context.Context, journal io.Writer) error {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) > stallFrom {
			if err := json.NewEncoder(journal).Encode(pause{last, now}); err != nil {
				return err
			}
		}
		last = now
	}
}
