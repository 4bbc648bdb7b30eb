package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// workers is what the heartbeats of pgstore do, in virtual time.
type workers struct {
	mu    sync.Mutex
	seen  map[*Dispatcher]time.Time
	parts map[*Dispatcher]float64 // that no other gets
	used  map[*Dispatcher]float64
}

const beatEvery, beatsMissed = time.Second, 3

// beat is one heartbeat: the part is 1/n, as far as the others leave it. What it gives up is free after the next one.
func (w *workers) beat(d *Dispatcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, n, left := time.Now(), 1.0, 1.0
	for other, seen := range w.seen {
		if other != d && now.Sub(seen) < beatsMissed*beatEvery {
			n++
			left -= w.parts[other]
		}
	}
	part := max(0, min(1/n, left))
	w.seen[d], w.parts[d], w.used[d] = now, max(part, w.used[d]), part
	d.SetRateShare(part, now.Add(beatsMissed*beatEvery))
}

// start runs a dispatcher with heartbeats until it is killed: then it does nothing more, and its row stays.
func (w *workers) start(t *testing.T, store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) (kill func()) {
	d, stop := begin(t, store, sink, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	d.SetRateShare(0, time.Time{})
	go func() {
		for ctx.Err() == nil {
			w.beat(d)
			pause(beatEvery, nil, ctx.Done())
		}
	}()
	return func() { cancel(); stop() }
}

// times are when deliveries began.
type times struct {
	mu sync.Mutex
	at []time.Time
}

func (c *times) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
}

// most is the most events that began within a window.
func (c *times) most(window time.Duration) (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := 0
	for i, at := range c.at {
		for at.Sub(c.at[from]) >= window {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// Three processes share a rate, and use it while there is a backlog, but for the part of one that is killed until it is taken for gone.
//
// CONTRACT: C-36
func TestLongRateIsSharedByTheProcesses(t *testing.T) {
	skipLong(t)
	for _, batch := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			store, w := storetest.NewMemory(), &workers{seen: map[*Dispatcher]time.Time{}, parts: map[*Dispatcher]float64{}, used: map[*Dispatcher]float64{}}
			store.Add("orders", 20_000)
			store.Add("returns", 20_000)
			slow := onClaim(store, slowly(5*time.Millisecond))
			var began times
			sink := &sinktest.Func{Max: batch, Respond: func(context.Context, *dispatcher.Event) error {
				began.note()
				time.Sleep(20 * time.Millisecond / time.Duration(batch))
				return nil
			}}
			cfg := dispatcher.Config{RateLimit: dispatcher.Rate{Events: 500, Period: time.Second}}
			start := time.Now()
			kill := w.start(t, slow, sink, cfg)
			w.start(t, slow, sink, cfg)
			w.start(t, slow, sink, cfg)
			time.Sleep(15 * time.Second)
			kill()
			time.Sleep(15 * time.Second)
			w.start(t, slow, sink, cfg)
			time.Sleep(30 * time.Second)
			used := float64(began.most(time.Hour)) / (500 * time.Since(start).Seconds())
			t.Logf("batch %d: at most %d in a second, %d in ten, %.3f used", batch, began.most(time.Second), began.most(10*time.Second), used)
			if second, ten := began.most(time.Second), began.most(10*time.Second); second > 550 || ten > 5100 || used < 0.93 {
				t.Errorf("batch %d: %d in a second, %d in ten, %.3f used; want at most 550 and 5100, and 0.93", batch, second, ten, used)
			}
		})
	}
}

// A topic's rate holds for it alone, and few of its rows are claimed ahead. Rate is what limits it.
//
// CONTRACT: C-36, C-97
func TestTopicRateHoldsForItAlone(t *testing.T) {
	for _, limit := range []dispatcher.Rate{{Events: 10, Period: time.Second}, {Events: 30, Period: time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Add("orders", 1000)
			store.Add("returns", 1000)
			var orders times
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic == "orders" {
					orders.note()
				}
				return nil
			}}
			d, _ := begin(t, store, sink, dispatcher.Config{TopicRateLimits: map[string]dispatcher.Rate{"orders": limit}})
			delivered(t, 5*time.Second, store, "returns", 1000)
			held := mostLeased(store, "orders", 600)
			perSecond := float64(limit.Events) / limit.Period.Seconds()
			got, want := len(orders.at), int(perSecond*time.Since(orders.at[0]).Seconds())
			need.That(t, got >= want*95/100 && got <= want+2, "%v: %d events in a minute, want %d", limit, got, want)
			if most := int(perSecond) + 2; orders.most(time.Second) > most || held > most {
				t.Errorf("%v: %d events in a second and %d held, want at most %d", limit, orders.most(time.Second), held, most)
			}
			s := d.Snapshot()
			need.That(t, limit.Period != time.Second || s.LimitedBy == dispatcher.LimitedByRate, "%v: limited by %q", limit, s.LimitedBy)
		})
	}
}

// mostLeased lets so many tenths of a second pass, and returns the most rows of a topic that had a lease.
func mostLeased(store *storetest.Memory, topic string, tenths int) (most int) {
	for range tenths {
		<-time.After(100 * time.Millisecond)
		most = max(most, store.Count(topic, "processing"))
	}
	return most
}

// Rows that wait for a call, or for others of their key, leave the rate to those that can use it. What limits each is
// said.
//
// CONTRACT: C-32, C-36, C-97
func TestRateIsUsedWhileRowsWaitForOtherThings(t *testing.T) {
	for name, test := range map[string]struct {
		slow  string // the topic of the events that take long, which are the first
		cfg   dispatcher.Config
		takes time.Duration
		most  int // of these events at once
		want  []dispatcher.TopicLimit
	}{
		"a slow topic": {"c", dispatcher.Config{}, 8 * time.Second, 200, []dispatcher.TopicLimit{
			{Topic: "c", LimitedBy: dispatcher.LimitedByConcurrency, Concurrency: 16}, {Topic: "d", LimitedBy: dispatcher.LimitedByRate, Concurrency: 16}}},
		"a hot key": {"d", dispatcher.Config{Ordering: dispatcher.OrderingKey}, 100 * time.Millisecond, 200, []dispatcher.TopicLimit{
			{Topic: "d", LimitedBy: dispatcher.LimitedByRate, Concurrency: 16}}},
	} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			store.AddLike(dispatcher.Event{Topic: test.slow, PartitionKey: "17"}, 2000)
			store.Add("d", 10_000)
			var began times
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if began.note(); e.PartitionKey != "" {
					<-time.After(test.takes)
				}
				return nil
			}}
			test.cfg.RateLimit = dispatcher.Rate{Events: 100, Period: time.Second}
			d, _ := begin(t, onClaim(store, slowly(10*time.Millisecond)), sink, test.cfg)
			held := mostLeased(store, test.slow, 600)
			n := began.most(time.Hour)
			need.That(t, n >= 95*60 && held <= test.most, "%d events began in a minute, and %d rows were held; want at least 0.95 of 6000, and at most %d", n, held, test.most)
			s := d.Snapshot()
			need.WantAll(t, test.want, "the topics are limited by %v, want %v", s.TopicLimits)
		})
	}
}

// A topic alone is limited by its rate while tokens are used up, also with a sink that takes batches; while its calls take
// too long for the rate, by those, and few of its rows are held.
//
// CONTRACT: C-36, C-97
func TestRateOfATopicAloneHoldsFewRows(t *testing.T) {
	for name, test := range map[string]struct {
		rate, batch, calls int
		takes              time.Duration
		want               dispatcher.LimitedBy
		most               int // rows held
	}{
		"a sink that takes batches":           {1000, 500, 16, 10 * time.Millisecond, dispatcher.LimitedByRate, 450},
		"a sink that takes batches, one call": {1000, 500, 1, 10 * time.Millisecond, dispatcher.LimitedByRate, 450},
		"slow calls":                          {10, 1, 1, 200 * time.Millisecond, dispatcher.LimitedByConcurrency, 8},
	} {
		t.Run(name, func(t *testing.T) {
			for _, limit := range []dispatcher.Config{{RateLimit: dispatcher.Rate{Events: test.rate, Period: time.Second}},
				{TopicRateLimits: map[string]dispatcher.Rate{"orders": {Events: test.rate, Period: time.Second}}}} {
				synctest.Test(t, func(t *testing.T) {
					store := storetest.NewMemory()
					store.Add("orders", 35*test.rate)
					limit.Concurrency = test.calls
					d, _ := begin(t, store, &sinktest.Slow{Sink: &sinktest.Func{Max: test.batch}, Delay: test.takes}, limit)
					held := mostLeased(store, "orders", 300)
					s := d.Snapshot()
					need.That(t, s.LimitedBy == test.want && held <= test.most, "limited by %s with %d rows held, want %s and at most %d", s.LimitedBy, held, test.want, test.most)
				})
			}
		})
	}
}

// Each topic has its own next token: one whose next is far off, since this process's part became small, delays no other.
//
// CONTRACT: C-32, C-36
func TestRateOfOneTopicDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("a", 100)
		d, _ := begin(t, store, &sinktest.Func{}, dispatcher.Config{TopicRateLimits: map[string]dispatcher.Rate{
			"a": {Events: 100, Period: time.Second}, "b": {Events: 10_000, Period: time.Second},
		}})
		passes(t, time.Second, "rows of one are claimed", func() bool { return store.Count("a", "processing") > 20 })
		d.SetRateShare(0.001, time.Time{})
		<-time.After(time.Second)
		store.Add("b", 5)
		delivered(t, time.Second, store, "b", 5)
		need.That(t, store.Count("a", "processing") != 0, "no row of the first waits for a token")
	})
}

// A quiet time is not made up for, and slow calls in parallel use a high rate.
//
// CONTRACT: C-36
func TestQuietTimeIsNotMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		var began times
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
			began.note()
			<-time.After(200 * time.Millisecond)
			return nil
		}}
		begin(t, store, sink, dispatcher.Config{Concurrency: 1000, RateLimit: dispatcher.Rate{Events: 2000, Period: time.Second}})
		<-time.After(10 * time.Second)
		store.Add("orders", 5000)
		start := time.Now()
		delivered(t, 10*time.Second, store, "orders", 5000)
		if took := time.Since(start); began.most(time.Second) > 2000+161 || took > 2900*time.Millisecond {
			t.Errorf("at most %d events in a second, 5000 in %v; want at most 2161, and 2.7s", began.most(time.Second), took)
		}
	})
}

// A process has no part of a rate once its time is over, and RunOnce waits for the rate as Run does.
//
// CONTRACT: C-36
func TestRateShareLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 1000)
		cfg := dispatcher.Config{RateLimit: dispatcher.Rate{Events: 100, Period: time.Second}}
		d, stop := begin(t, store, &sinktest.Func{}, cfg)
		d.SetRateShare(0.5, time.Now().Add(3*time.Second))
		<-time.After(time.Minute)
		if n := store.Count("orders", "delivered"); n < 140 || n > 150 {
			t.Errorf("%d events with half of the rate for three seconds, want 150", n)
		}
		d.SetRateShare(0.5, time.Time{})
		<-time.After(time.Second)
		if n := store.Count("orders", "delivered"); n < 185 || n > 205 {
			t.Errorf("%d events a second later, want 200", n)
		}
		stop()
		d = newDispatcher(t, store, &sinktest.Func{}, cfg)
		began := time.Now()
		done, err := d.RunOnce(t.Context(), 300)
		took := time.Since(began)
		need.That(t, err == nil && done.Delivered == 300 && took >= 2900*time.Millisecond && took <= 4*time.Second, "RunOnce: %+v in %v, %v; want 300 in 3s", done, took, err)
		unused := newBucket(cfg.RateLimit)
		unused.share(1, began)
		unused.share(0, began.Add(time.Second))
		need.That(t, unused.tokens < 1, "%v events may begin after the part", unused.tokens)
	})
}

// RunOnce with a limit ends when nothing more is due.
//
// CONTRACT: C-36
func TestRunOnceWithARateEnds(t *testing.T) {
	second := dispatcher.Rate{Events: 2, Period: time.Second}
	for name, cfg := range map[string]dispatcher.Config{
		"the dispatcher's":          {RateLimit: second, Topics: []string{"orders", "returns"}},
		"a topic's":                 {TopicRateLimits: map[string]dispatcher.Rate{"orders": second}, Topics: []string{"orders"}},
		"of topics that are listed": {RateLimit: second, PollInterval: 100 * time.Millisecond},
	} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Add("orders", 5)
			d := newDispatcher(t, store, &sinktest.Func{}, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			began := time.Now()
			done, err := d.RunOnce(ctx, 10)
			took := time.Since(began)
			need.That(t, err == nil && done.Delivered == 5 && took <= 4*time.Second, "RunOnce: %+v in %v, %v; want 5 in 2s", done, took, err)
		})
	}
}

func tenantOf(n int) uuid.NullUUID { return uuid.NullUUID{UUID: uuid.UUID{15: byte(n)}, Valid: true} }

// others delivers 100 events a second of 50 tenants for 20 seconds, with a flood of another tenant or none, and returns the 99th percentile
// of the time from an event's creation to its delivery.
func others(t *testing.T, cfg dispatcher.Config, flood int) (p99 time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		var mu sync.Mutex
		var waits []time.Duration
		served := 0
		sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			<-time.After(10*time.Millisecond + rand.N(20*time.Millisecond))
			mu.Lock()
			defer mu.Unlock()
			if e.TenantID == tenantOf(0) {
				served++
			} else {
				waits = append(waits, time.Since(e.CreatedAt))
			}
			return nil
		}}
		cfg.Concurrency, cfg.Topics = 8, []string{"orders"}
		store.AddLike(dispatcher.Event{TenantID: tenantOf(0), Topic: "orders"}, flood)
		begin(t, onClaim(store, slowly(time.Millisecond)), sink, cfg)
		for i := range 2000 {
			store.AddLike(dispatcher.Event{TenantID: tenantOf(1 + i%50), Topic: "orders"}, 1)
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(time.Second)
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(waits)
		need.That(t, flood <= 0 || (served != 0 && served < flood), "%d of the flood of %d were delivered; it must continue, and last", served, flood)
		if p99 = time.Hour; len(waits) == 2000 { // otherwise some wait for the whole flood
			p99 = waits[len(waits)*99/100]
		}
	})
	return p99
}

// The flood of one tenant does not hold up the others of its topic.
//
// CONTRACT: C-37
func TestLongFloodOfOneTenantDelaysNoOther(t *testing.T) {
	skipLong(t)
	fair := dispatcher.Config{Fairness: dispatcher.FairnessTenant}
	alone, flooded, unfair := others(t, fair, 0), others(t, fair, 9000), others(t, dispatcher.Config{}, 9000)
	t.Logf("99 %% of the others within %v alone, %v with the flood, %v without fairness", alone, flooded, unfair)
	need.That(t, flooded <= alone*6/5, "99 %% of the others within %v, and with the flood within %v; want at most 1.2 times as much", alone, flooded)
	need.That(t, unfair >= 2*flooded, "without fairness %v, too little to prove anything", unfair)
}

// The queue is in the order of turns: a tenant's row waits for one row of each other tenant, and not for the second one.
//
// CONTRACT: C-37
func TestQueueIsInTurns(t *testing.T) {
	topic := newTopic("orders", true)
	add := func(tenants ...int) {
		for _, n := range tenants {
			topic.queue.insert(&row{event: &dispatcher.Event{TenantID: tenantOf(n)}})
		}
	}
	next := func(n int) (tenants []int) {
		rows := topic.queue.rows[:n]
		for _, r := range rows {
			tenants = append(tenants, int(r.event.TenantID.UUID[15]))
		}
		topic.queue.rows = topic.queue.rows[n:]
		topic.queue.beginTurn(rows)
		return tenants
	}
	add(1, 1, 1, 1, 2, 3, 2)
	need.WantAll(t, []int{1, 2, 3, 1}, "the first rows are of %v", next(4))
	add(4, 3)
	need.WantAll(t, []int{2, 4, 3, 1, 1}, "the last rows are of %v", next(5))
}

// While the calls of one tenant hang, the last calls are for the others.
//
// CONTRACT: C-37
func TestTenantWhoseCallsHangDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		others := 0
		sink := &sinktest.Func{Respond: func(ctx context.Context, e *dispatcher.Event) error {
			if e.TenantID == tenantOf(0) {
				<-ctx.Done()
				return ctx.Err()
			}
			others++
			return nil
		}}
		store.AddLike(dispatcher.Event{TenantID: tenantOf(0), Topic: "orders"}, 1000)
		store.AddLike(dispatcher.Event{TenantID: tenantOf(1), Topic: "orders"}, 1)
		begin(t, store, sink, dispatcher.Config{Concurrency: 8, Topics: []string{"orders"}, Fairness: dispatcher.FairnessTenant})
		<-time.After(time.Second)
		for i := range 20 {
			store.AddLike(dispatcher.Event{TenantID: tenantOf(1 + i%3), Topic: "orders"}, 1)
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		need.Want(t, 21, "%d events of the others were delivered while calls hang, want 21", others)
	})
}
