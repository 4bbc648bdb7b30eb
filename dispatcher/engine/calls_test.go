package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// arrivals is a topic of a simulation: how long its calls take, and how often an event comes. Without that it always has some.
type arrivals struct {
	takes, every time.Duration
	from         time.Duration // when the first event comes
}

// served is what a topic had: the time of its calls, and how long its events waited for one.
type served struct {
	time  time.Duration
	waits []time.Duration
}

// simulate delivers the events of topics for so long, in virtual time and without a store.
func simulate(t *testing.T, calls int, topics map[string]arrivals, long time.Duration) map[string]*served {
	out := map[string]*served{}
	synctest.Test(t, func(*testing.T) {
		f, ends, next := testFlight(dispatcher.Config{Concurrency: calls}, func() {}), map[*delivery]time.Time{}, map[string]time.Duration{}
		for name, s := range topics {
			out[name], next[name] = &served{}, s.from
		}
		f.intake().listTopics(slices.Collect(maps.Keys(topics)), 0)
		step := 5 * time.Millisecond
		for now := time.Duration(0); now < long; now += step {
			for name, s := range topics {
				n := 0
				if s.every == 0 {
					n = 3 - f.queued(name)
				}
				for ; s.every > 0 && next[name] <= now; next[name] += s.every {
					n++
				}
				if n > 0 && now >= s.from {
					f.intake().add(claimOf(name, n, 1), time.Now(), 0)
				}
			}
			for d, end := range ends {
				if !time.Now().Before(end) {
					f.finish(d, make([]error, 1))
					delete(ends, d)
				}
			}
			for d := f.next(calls); d != nil; d = f.next(calls) {
				name := d.topic.name
				ends[d] = time.Now().Add(topics[name].takes)
				out[name].time += topics[name].takes
				out[name].waits = append(out[name].waits, time.Since(d.rows[0].claimedAt))
			}
			f.leases().keep(time.Now())
			<-time.After(step)
		}
		for name := range topics { // those that still wait
			for _, r := range f.topics.get(name).queue.rows {
				out[name].waits = append(out[name].waits, time.Since(r.claimedAt))
			}
		}
	})
	return out
}

// queued is how many rows of a topic are queued.
func (f *flight) queued(topic string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.topics.get(topic).queue.rows)
}

// next begins a call, if one of so many is free.
func (f *flight) next(calls int) *delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls.running >= calls {
		return nil
	}
	return begun(f, 1, time.Now())
}

// keep extends the leases of all rows.
func (l *leases) keep(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.account.inFlight {
		r.safeUntil = safeUntil(now, l.lease)
	}
}

// p99 is how long 99 of a hundred events waited at most.
func (s *served) p99() time.Duration {
	slices.Sort(s.waits)
	return s.waits[len(s.waits)*99/100]
}

// With any number of topics whose calls are slow, an event of a fast one waits for a second at most (CONTRACT C-33), and the
// slow ones have the calls that it leaves, each about as many as another.
//
// CONTRACT: C-32
func TestLongSlowTopicsDelayNoFastOne(t *testing.T) {
	skipLong(t)
	for _, c := range []struct {
		calls, topics int
		takes         time.Duration
	}{
		{16, 1, time.Minute}, {16, 14, time.Second}, {16, 16, 5 * time.Second}, {16, 20, 5 * time.Second}, {16, 64, 5 * time.Second},
		{16, 256, 5 * time.Second}, {16, 20, time.Minute}, {8, 32, 10 * time.Second}, {64, 256, 500 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%d topics of %v share %d calls", c.topics, c.takes, c.calls), func(t *testing.T) {
			all := map[string]arrivals{"well": {5 * time.Millisecond, 100 * time.Millisecond, 6 * time.Second}}
			for i := range c.topics {
				all[fmt.Sprint("slow-", i)] = arrivals{takes: c.takes}
			}
			long := max(46*time.Second, 2*c.takes*time.Duration(1+c.topics/c.calls))
			got := simulate(t, c.calls, all, long)
			if p99 := got["well"].p99(); p99 > time.Second {
				t.Errorf("99 %% of the fast topic's events wait for at most %v, want a second", p99)
			}
			var least, most, sum time.Duration
			for name, s := range got {
				if name != "well" {
					sum, most = sum+s.time, max(most, s.time)
					if least == 0 || s.time < least {
						least = s.time
					}
				}
			}
			if want := long * time.Duration(min(c.calls-(&calls{bound: c.calls}).reserved(), c.topics)) * 8 / 10; c.topics > 1 && sum < want || most > 2*least+2*c.takes {
				t.Errorf("the slow topics have from %v to %v of calls, %v in all; want %v", least, most, sum, want)
			}
		})
	}
}

// Calls are shared by their time: a topic whose calls take 2 s does not crowd out one whose calls take 20 ms, and both have about
// half of it.
//
// CONTRACT: C-32
func TestFreeCallGoesToTheTopicWithTheLeastTime(t *testing.T) {
	got := simulate(t, 16, map[string]arrivals{"slow": {takes: 2 * time.Second}, "fast": {takes: 20 * time.Millisecond}}, time.Minute)
	if slow, fast := got["slow"].time.Seconds(), got["fast"].time.Seconds(); fast < 0.35*(slow+fast) || slow+fast < 0.85*16*60 {
		t.Errorf("of 960 s of calls the slow topic had %.0f s and the fast one %.0f s", slow, fast)
	}
}

// Topics whose calls hang with events of 3 MB fill the bytes, and delay no topic with small events, however many they are.
//
// CONTRACT: C-33, C-35
func TestLargeRowsOfHungTopicsDelayNoOther(t *testing.T) {
	for _, topics := range []int{12, 40} {
		synctest.Test(t, func(t *testing.T) {
			store, large := storetest.NewMemory(), make([]byte, 3_000_000)
			for i := range topics {
				store.AddLike(dispatcher.Event{Topic: fmt.Sprint("hangs-", i), Payload: large}, 8)
			}
			begin(t, store, &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic != "well" {
					<-time.After(10 * time.Second)
					return context.DeadlineExceeded
				}
				return nil
			}}, dispatcher.Config{})
			for n := range 30 {
				store.Add("well", 1)
				delivered(t, 2*time.Second, store, "well", n+1)
				<-time.After(time.Second)
			}
		})
	}
}
