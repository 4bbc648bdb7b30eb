package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// tally counts how deliveries end, and forwards the calls. An event is delivered when its row was marked so.
type tally struct {
	dispatcher.Observer
	delivered, failed atomic.Int64
	marks             []mark // the oldest first; the heartbeat's alone

	mu     sync.Mutex
	recent []int64 // delivered at each of the last seconds, the oldest first
}

// mark is the counts at a time.
type mark struct {
	at                time.Time
	delivered, failed int64
}

// Acked implements [dispatcher.Observer].
func (t *tally) Acked(e *dispatcher.Event, latency time.Duration) {
	t.delivered.Add(1)
	t.Observer.Acked(e, latency)
}

// Failed implements [dispatcher.Observer].
func (t *tally) Failed(e *dispatcher.Event, err error, took, delay time.Duration) {
	t.failed.Add(1)
	t.Observer.Failed(e, err, took, delay)
}

// lately returns how many deliveries ended well and badly in each of dispatcher.Windows, and remembers the counts. A
// window begins at the last call before it, or at the process's start.
func (t *tally) lately(now time.Time) (delivered, failed [len(dispatcher.Windows)]int64) {
	current := mark{now, t.delivered.Load(), t.failed.Load()}
	oldest := 0 // the first mark that the last window needs, which is the longest
	for i, window := range dispatcher.Windows {
		var before mark
		oldest = 0
		for j, m := range t.marks {
			if now.Sub(m.at) < window {
				break
			}
			before, oldest = m, j
		}
		delivered[i], failed[i] = current.delivered-before.delivered, current.failed-before.failed
	}
	t.marks = append(t.marks[oldest:], current)
	return delivered, failed
}

// recently is over how many seconds perSecond is taken.
const recently = 15

// watch remembers the counts of the last seconds, until ctx ends.
func (t *tally) watch(ctx context.Context) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-second.C:
			t.tick()
		case <-ctx.Done():
			return
		}
	}
}

func (t *tally) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.recent = append(t.recent, t.delivered.Load()); len(t.recent) > recently+1 {
		t.recent = append(t.recent[:0], t.recent[1:]...)
	}
}

// perSecond is how many events were delivered in each of the last seconds, on average.
func (t *tally) perSecond() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.recent) - 1
	if last < 1 {
		return 0
	}
	return float64(t.recent[last]-t.recent[0]) / float64(last)
}

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

// setRight has events due that a clock which was ahead made late, now and then until ctx ends (CONTRACT C-3).
func (d *Dispatcher) setRight(ctx context.Context) {
	look := time.NewTicker(heartbeatEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if err := d.store.SetRight(ctx, d.cfg.Topics); err != nil {
			d.log.Debug("events that a clock which was ahead made late were not looked for", "error", err)
		}
	}
}
