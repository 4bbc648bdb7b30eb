package cli

import (
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// tally counts how deliveries end, and forwards the calls. An event is delivered when its row was marked so.
type tally struct {
	dispatcher.Observer
	delivered, failed atomic.Int64
	marks             []mark // the oldest first; the heartbeat's alone
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
