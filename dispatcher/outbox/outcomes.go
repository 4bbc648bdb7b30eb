package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
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
