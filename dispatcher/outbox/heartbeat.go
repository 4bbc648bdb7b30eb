package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

const (
	// heartbeatEvery is how often a worker notes in the database that it runs, and shareEvery the same while it shares a
	// limit. It is live for beatsMissed of them (CONTRACT C-36).
	heartbeatEvery = 15 * time.Second
	shareEvery     = time.Second
	beatsMissed    = 3
	// heartbeatTimeout bounds that statement, and leaveTimeout the one at the stop.
	heartbeatTimeout = 5 * time.Second
	leaveTimeout     = time.Second
)

// maxPaused is the most topics of which a heartbeat says that they are paused, and maxPausedText the most bytes of why.
const maxPaused, maxPausedText = 32, 400

// pausedTopics says why topics are paused, by their names; an empty one is all.
func pausedTopics(now dispatcher.Snapshot) map[string]string {
	all := map[string]string{}
	pause := func(topic, why string) {
		if len(all) < maxPaused {
			all[topic] = strings.ReplaceAll(strings.ToValidUTF8(why[:min(len(why), maxPausedText)], ""), "\x00", "") // jsonb has no NUL
		}
	}
	if now.Breaker != "" && now.Breaker != dispatcher.BreakerClosed {
		pause("", fmt.Sprintf("the destination is %s: %v", now.Breaker, now.Sink.Err))
	}
	for _, t := range now.PausedTopics {
		pause(t.Topic, fmt.Sprintf("its destination is %s: %v", t.Breaker, t.Err))
	}
	for _, t := range now.Gated {
		pause(t.Topic, fmt.Sprintf("the type of its next event, %q, is not admitted; register its consumer", t.EventType))
	}
	return all
}

// heartbeat keeps this worker's row in the table outbox_workers, with the recent outcomes of its deliveries, until ctx ends,
// and then removes it. The engine gets its part of the rate limits, and the number of live processes. Failures are logged at debug, since claims report
// whether the database responds; with a rate limit the first one is a warning, since nothing is delivered without a part.
func (d *Dispatcher) heartbeat(ctx context.Context, w pgstore.WorkerInfo) {
	every := heartbeatEvery
	if d.cfg.limited() {
		every = shareEvery
	}
	w.Live = beatsMissed * every
	beat := time.NewTicker(every)
	defer beat.Stop()
	failed := false
	for ctx.Err() == nil {
		w.Delivered, w.Failed = d.outcomes.lately(time.Now())
		now := d.Snapshot()
		w.Paused, w.PausedTopics = now.Paused || now.Draining, pausedTopics(now)
		if now.RatePart != nil {
			w.RatePart = *now.RatePart
		}
		limited, cancel := context.WithTimeout(ctx, heartbeatTimeout)
		sentAt := time.Now() // before the statement is sent: the part ends here before it is free in the database
		if seen, err := d.store.Heartbeat(limited, w); err != nil {
			level, what := slog.LevelDebug, "this worker's row in outbox_workers was not renewed"
			if now.RatePart != nil && !failed && ctx.Err() == nil {
				level, what = slog.LevelWarn, what+", so it gets no part of the rate limit, and delivers nothing"
			}
			d.log.Log(ctx, level, what, "error", err)
			failed = true
		} else {
			failed = false
			d.SetRateShare(seen.Part, sentAt.Add(w.Live))
			d.SetPeers(seen.Live)
		}
		cancel()
		select {
		case <-beat.C:
		case <-ctx.Done():
		}
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := d.store.Leave(limited); err != nil {
		d.log.Debug("this worker's row in outbox_workers was not removed", "error", err)
	}
}
