package engine_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// asleep is a dispatcher that looks by itself at its start, and then after twenty minutes.
func asleep(topics ...string) dispatcher.Config {
	return dispatcher.Config{Topics: topics, Lease: time.Hour, PollInterval: 20 * time.Minute}
}

// listen makes a dispatcher hear the producers of the namespace, until the test ends.
func (r rig) listen(dsn, namespace string, wake func(), log *logBook) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pgstore.Listen(ctx, func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
			pgtest.Schema, namespace, wake, log.logger())
	}()
	r.Cleanup(func() {
		cancel()
		receive(r.T, "Listen returns when its context has ended", ended)
	})
}

// A producer's wake-up makes a dispatcher deliver whose next look is in twenty minutes. A topic that is
// not known yet is found.
func TestProducerWakesDispatcher(t *testing.T) {
	for name, topics := range map[string][]string{"of its topics": {"orders"}, "of all topics": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			r, log := rig{t, pgtest.Pool(t, dsn)}, &logBook{}
			store := &countingStore{Store: r.store()}
			d := r.start(store, &book{}, asleep(topics...))
			r.listen(dsn, "shop", d.Wake, log)
			r.eventually("it listens", func() bool { return len(log.lines("are received")) == 1 })
			waker := producer.NewWaker(r.Pool, producer.WakerOptions{})
			for round := range 3 {
				r.enqueue("orders", 10)
				waker.Wake("shop")
				r.eventually("the events are delivered", func() bool { return r.count("status = 'delivered'") == 10*(round+1) })
			}
			r.enqueue("orders", 1)
			waker.Wake("another namespace")
			waker.Wake("shop")
			r.eventually("the last one is delivered", func() bool { return r.count("status = 'delivered'") == 31 })
		})
	}
}

// Wake-ups that are not for the namespace wake no dispatcher.
func TestListenHearsItsNamespace(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	r, log, woken := rig{t, pgtest.Pool(t, dsn)}, &logBook{}, make(chan struct{}, 100)
	r.listen(dsn, "shop", func() { woken <- struct{}{} }, log)
	receive(t, "it wakes for what was missed before it listened", woken)
	pgtest.Exec(r, "select pg_notify('outbox', 'store'), pg_notify('another', 'shop'), pg_notify('outbox', '')")
	pgtest.Exec(r, "select pg_notify('outbox', 'shop')")
	receive(t, "it wakes", woken)
	if n := len(woken); n != 0 {
		t.Errorf("it woke %d times more", n)
	}
}

// A listener whose connection ends makes a new one, and wakes for what it may have missed.
func TestListenConnectsAgain(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	r, log := rig{t, pgtest.Pool(t, dsn)}, &logBook{}
	d := r.start(r.store(), &book{}, asleep("orders"))
	r.listen(dsn, "shop", d.Wake, log)
	waker := producer.NewWaker(r.Pool, producer.WakerOptions{})
	const listeners = `from pg_stat_activity where datname = current_database() and query ilike 'listen%' or query = 'select pg_backend_pid()'`
	r.eventually("it listens", func() bool { return len(log.lines("are received")) == 1 })
	for round := range 3 {
		r.enqueue("orders", 1)
		waker.Wake("shop")
		r.eventually("the event is delivered", func() bool { return r.count("status = 'delivered'") == 2*round+1 })
		r.enqueue("orders", 1) // no wake-up is sent for this one
		if n := pgtest.Value[int](r, "select count(pg_terminate_backend(pid)) "+listeners); n == 0 {
			t.Fatal("no listener was found")
		}
		r.eventually("it is delivered when the listener has recovered", func() bool { return r.count("status = 'delivered'") == 2*round+2 })
		r.eventually("it has recovered", func() bool { return len(log.lines("are received")) == round+2 })
		if n := len(log.lines("not received")); n != round+1 {
			t.Errorf("the log says %d times that wake-ups are not received, want once for each of %d losses", n, round+1)
		}
	}
}

// claimLog is a store that notes which claims are for a few rows.
type claimLog struct {
	dispatcher.Store
	mu     sync.Mutex
	limits []int // of each claim; negative when it is for a few
	found  []int
}

func (s *claimLog) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	limit := 0
	for _, share := range req.Shares {
		limit += share.Limit
	}
	if req.Small {
		limit = -limit
	}
	claimed, err := s.Store.Claim(ctx, req)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits, s.found = append(s.limits, limit), append(s.found, len(claimed.Events))
	return claimed, err
}

// since returns the limits of the claims after the first n, and how many there are now.
func (s *claimLog) since(n int) ([]int, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.limits[n:]), len(s.limits)
}

// A wake-up is followed by a small claim of a few rows. What that one leaves does not wait for the next poll: large
// rows, dead ones, and all beyond the few.
func TestWakeIsFollowedByASmallClaim(t *testing.T) {
	for name, test := range map[string]struct {
		topics []string
		order  dispatcher.Ordering
		change string // of the rows
		rows   int
		few    int // the limit of the quick claim, as claimLog notes it; 0 when there is none
	}{
		"one row":            {topics: []string{"orders"}, rows: 1, few: -10},
		"two topics":         {topics: []string{"orders", "others"}, rows: 1, few: -20},
		"all topics":         {rows: 1, few: -10},
		"many rows":          {topics: []string{"orders"}, rows: 300, few: -10},
		"a large row":        {topics: []string{"orders"}, rows: 1, few: -10, change: `payload = to_jsonb(repeat('x', 200000))`},
		"a row to mark dead": {topics: []string{"orders"}, rows: 1, few: -10, change: `attempts = 10`},
		"many topics":        {topics: []string{"orders", "a", "b", "c", "d", "e"}, rows: 1},
		"in order per key":   {topics: []string{"orders"}, order: dispatcher.OrderingKey, rows: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if test.topics == nil {
				r.enqueue("orders", 1) // or the topic is not known
			}
			store := &claimLog{Store: r.store()}
			config := asleep(test.topics...)
			config.Ordering, config.MaxBytes = test.order, 1<<20
			d := r.start(store, &book{}, config)
			before := 0
			r.eventually("it has looked, and sleeps", func() bool { _, before = store.since(0); return before > 0 && r.count("live") == 0 })
			r.enqueue("orders", test.rows)
			if test.change != "" {
				pgtest.Exec(r, `update outbox.outbox_events set `+test.change+` where live`)
			}
			d.Wake()
			r.eventually("nothing is left", func() bool { return r.count("live") == 0 })
			r.eventually("a claim of a few is made, if that is to be", func() bool {
				claims, _ := store.since(before)
				return slices.Contains(claims, test.few) || test.few == 0
			})
			claims, _ := store.since(before)
			if n := len(slices.DeleteFunc(slices.Clone(claims), func(limit int) bool { return limit > 0 })); n > 1 || n == 1 && test.few == 0 {
				t.Errorf("the limits of the claims are %v", claims)
			}
		})
	}
}

// However often it is woken, some of its claims are ordinary ones.
func TestWakesAgainAndAgain(t *testing.T) {
	r := newRig(t)
	store := &claimLog{Store: r.store()}
	d := r.start(store, &book{}, asleep("orders"))
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				d.Wake()
			}
		}
	}()
	r.eventually("it claims often", func() bool { _, n := store.since(0); return n > 300 })
	for range 20 {
		r.enqueue("orders", 100)
	}
	r.eventually("nothing is left", func() bool { return r.count("live") == 0 })
	close(done)
	<-ended
	store.mu.Lock() // it still claims
	defer store.mu.Unlock()
	row := 0
	for i, limit := range store.limits {
		if row++; limit > 0 {
			row = 0
		}
		if row > 4 {
			t.Fatalf("%d claims in a row are of a few", row)
		}
		if row > 0 && i > 0 && store.found[i-1] >= 10 {
			t.Errorf("a claim found %d rows, and the next one is of a few", store.found[i-1])
		}
	}
}

// While a topic is paused no claim is for a few rows: its half-open probes have limits of their own, which such a claim does
// not know.
func TestWakeMakesNoSmallClaimWhilePaused(t *testing.T) {
	r := newRig(t)
	store, sink := &claimLog{Store: r.store()}, newSites(map[string]error{"b": errUnreachable})
	d := r.start(store, sink, asleep("a", "b"))
	delivered := 0
	wake := func() {
		delivered++
		r.enqueue("a", 1)
		d.Wake()
		r.eventually("the other topic's event is delivered", func() bool { return r.count("status = 'delivered' and topic = 'a'") == delivered })
	}
	r.enqueue("b", 100)
	r.eventually("the topic is paused", func() bool {
		wake()
		return len(d.Snapshot().PausedTopics) == 1
	})
	wake() // what was claimed before it was held has been noted
	_, before := store.since(0)
	for range 5 {
		wake()
	}
	held, _ := store.since(before)
	if few := slices.ContainsFunc(held, func(limit int) bool { return limit < 0 }); few || len(held) < 5 {
		t.Errorf("the limits of the claims while a topic is paused are %v, want five or more and none of them negative", held)
	}
	sink.set("b", nil)
	r.eventually("the topic recovers", func() bool { return len(d.Snapshot().PausedTopics) == 0 })
	r.eventually("claims are for a few again", func() bool {
		wake()
		claims, _ := store.since(before + len(held))
		return slices.Contains(claims, -20)
	})
}
