package engine

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// bearing is a Sink whose destination works on so many calls at once.
type bearing struct {
	sinktest.Func
	places    chan struct{}
	took      time.Duration
	delivered atomic.Int64
	most, now atomic.Int64
}

func newBearing(knee int, took time.Duration) *bearing {
	s := &bearing{places: make(chan struct{}, knee), took: took}
	s.Respond = func(context.Context, *dispatcher.Event) error {
		s.most.Store(max(s.most.Load(), s.now.Add(1)))
		defer s.now.Add(-1)
		s.places <- struct{}{}
		<-time.After(time.Duration((0.8 + 0.4*rand.Float64()) * float64(s.took)))
		<-s.places
		s.delivered.Add(1)
		return nil
	}
	return s
}

// in lets time pass, and returns how many were delivered in it.
func (s *bearing) in(d time.Duration) int64 {
	before := s.delivered.Load()
	<-time.After(d)
	return s.delivered.Load() - before
}

func limitOf(d *Dispatcher) int {
	for _, l := range d.Snapshot().TopicLimits {
		return l.Concurrency
	}
	return 0
}

var auto = dispatcher.Config{Topics: []string{"orders"}, Concurrency: dispatcher.Auto, Logger: slog.New(slog.DiscardHandler)}

// With Auto the engine finds what a destination bears, and says that it is the destination that limits it. What the other
// live processes leave is the bound.
//
// CONTRACT: C-38, C-97
func TestAutoFindsTheKnee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newBearing(40, 100*time.Millisecond)
		d, stop := begin(t, &endless{}, sink, auto)
		took := passes(t, 15*time.Second, "the limit is found", func() bool { n := limitOf(d); return n >= 32 && n <= 48 })
		<-time.After(20 * time.Second)
		rate := float64(sink.in(20*time.Second)) / 20
		s := d.Snapshot()
		t.Logf("found after %v; %v/s; %v", took, rate, s.TopicLimits)
		need.That(t, rate >= 360 && s.LimitedBy == dispatcher.LimitedByDestination && s.TopicLimits[0].Concurrency >= 32 && s.TopicLimits[0].Concurrency <= 48,
			"%v events a second, limited by %s, %v; want at least 360, the destination and about 40 calls", rate, s.LimitedBy, s.TopicLimits)
		d.SetPeers(16)
		if n := limitOf(d); n > 3 {
			t.Errorf("with 16 live workers the limit is %d at once, want a sixteenth of what was found", n)
		}
		took = passes(t, time.Minute, "the limit is the bound", func() bool { return limitOf(d) == 16 })
		t.Logf("as many as it may have after %v", took)
		<-time.After(5 * time.Second)
		s = d.Snapshot()
		need.That(t, s.Concurrency == 16 && s.LimitedBy == dispatcher.LimitedByConcurrency,
			"with 16 live workers it is limited by %s, at most %d calls; want the concurrency and 16", s.LimitedBy, s.Concurrency)
		stop()
	})
}

// Without a knee it takes all that it may have, and says so. A new topic is not held up by the other one.
//
// CONTRACT: C-38, C-97
func TestAutoTakesTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newBearing(1000, 100*time.Millisecond)
		cfg := auto
		cfg.MaxConcurrency = 200
		d, stop := begin(t, &endless{}, sink, cfg)
		took := passes(t, 12*time.Second, "the limit is the bound", func() bool { return limitOf(d) == 200 })
		<-time.After(5 * time.Second)
		s := d.Snapshot()
		stop()
		t.Logf("found after %v", took)
		need.That(t, s.LimitedBy == dispatcher.LimitedByConcurrency && sink.most.Load() <= 200,
			"limited by %s, %d calls at once; want the concurrency and 200", s.LimitedBy, sink.most.Load())
	})
}

// A process has no more calls than its part, however many topics have events, and all of them at once. The topics have
// them in turn, and one whose destination was down has its probes.
//
// CONTRACT: C-32, C-38
func TestAutoKeepsToItsPart(t *testing.T) {
	for live, part := range map[int]int64{1: 16, 4: 4, 5: 3, 100: 1} {
		synctest.Test(t, func(t *testing.T) {
			sink := newBearing(1000, 100*time.Millisecond)
			deliver, byTopic, mu := sink.Respond, map[string]int{}, sync.Mutex{}
			end := time.Now().Add(10 * time.Second)
			sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
				err := deliver(ctx, e)
				mu.Lock()
				defer mu.Unlock()
				if byTopic[e.Topic]++; e.Topic == "a" && time.Now().Before(end) {
					return errFault
				}
				return err
			}
			cfg := auto
			cfg.MaxConcurrency, cfg.Topics = 16, strings.Split("abcdefghijklmnop", "")
			d := newDispatcher(t, &endless{}, sink, cfg)
			d.SetPeers(live)
			stop := running(t, d)
			<-time.After(20 * time.Second)
			passes(t, time.Minute, "the topic is resumed", func() bool { return len(d.Snapshot().PausedTopics) == 0 })
			mu.Lock()
			clear(byTopic)
			mu.Unlock()
			<-time.After(60 * time.Second)
			mu.Lock()
			most, least := 0, math.MaxInt
			for _, topic := range cfg.Topics {
				most, least = max(most, byTopic[topic]), min(least, byTopic[topic])
			}
			mu.Unlock()
			if n := sink.most.Load(); n != part || float64(least) < 60*7*float64(part)/16 || most > least+least/2 {
				t.Errorf("with %d processes this one has %d calls at once, and from %d to %d of a topic; want %d calls, in turn", live, n, least, most, part)
			}
			stop()
		})
	}
}

// An event's own fault says nothing of the destination. An outage does, and after it half of what was good is the
// beginning.
//
// CONTRACT: C-38
func TestAutoBeginsWithHalfAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newBearing(40, 100*time.Millisecond)
		deliver, n := sink.Respond, atomic.Int64{}
		var down atomic.Bool
		sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
			if down.Load() {
				<-time.After(5 * time.Millisecond)
				return errFault
			}
			if err := deliver(ctx, e); n.Add(1)%3 == 0 {
				return errors.Join(err, errContent)
			}
			return nil
		}
		d, stop := begin(t, &endless{}, sink, auto)
		<-time.After(30 * time.Second)
		good := limitOf(d)
		need.That(t, good >= 32 && good <= 48, "with 422 for a third of the events the limit is %d, want about 40", good)
		down.Store(true)
		<-time.After(5 * time.Minute)
		if n := limitOf(d); n > good/2 {
			t.Errorf("in an outage the limit is %d, %d before", n, good)
		}
		down.Store(false)
		passes(t, 20*time.Second, "it is delivering", func() bool { return d.Snapshot().Breaker == dispatcher.BreakerClosed })
		if n := limitOf(d); n < good/3 || n > good*3/4 {
			t.Errorf("after the outage the limit is %d, %d before; want half", n, good)
		}
		if n := sink.in(5 * time.Second); n < 5*200 {
			t.Errorf("%d calls in the 5 s after the outage, 400 a second before; want half of that at least", n)
		}
		stop()
	})
}

// What a rule or a schema does not let through was not sent: it says nothing of the destination, however soon it fails.
//
// CONTRACT: C-38
func TestAutoIgnoresWhatIsNotSent(t *testing.T) {
	for name, test := range map[string]struct {
		unsent      error
		every       int64 // of so many events one
		least       int64 // events a second
		limit, most int
	}{
		"a rule cannot be computed": {dispatcher.DestinationFault(dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassRule}, errors.New("there is no field"))), 2, 220, 8, 56},
		"a schema":                  {dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassSchema}, errors.New("not a number"))), 4, 340, 32, 56},
	} {
		virtual(t, name, func(t *testing.T) {
			sink := newBearing(40, 100*time.Millisecond)
			deliver, n := sink.Respond, atomic.Int64{}
			sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
				if n.Add(1)%test.every == 0 {
					return test.unsent
				}
				return deliver(ctx, e)
			}
			d, stop := begin(t, &endless{}, sink, auto)
			<-time.After(30 * time.Second)
			rate, limit, cuts := sink.in(20*time.Second)/20, limitOf(d), d.Snapshot().Decisions[string(pacer.Refused)]
			stop()
			need.That(t, rate >= test.least && limit >= test.limit && limit <= test.most && cuts == 0,
				"%d events a second, a limit of %d, %d cuts for refusals; want at least %d, %d to %d, and none", rate, limit, cuts, test.least, test.limit, test.most)
		})
	}
}

// A destination that refuses more than 20 calls at once gets about 20, though no yield of those that it takes falls. Where it
// does not respond to them within the time of a delivery, it gets fewer than there may be.
//
// CONTRACT: C-38
func TestAutoHoldsWhereCallsAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		refuse func(context.Context) error
		limit  int
		part   float64 // that is refused
	}{
		"it refuses": {func(context.Context) error { <-time.After(5 * time.Millisecond); return errFault }, 24, 0.02},
		"it hangs":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 200, 0.9},
	} {
		virtual(t, name, func(t *testing.T) {
			sink := newBearing(1000, 100*time.Millisecond)
			deliver := sink.Respond
			var now, refused atomic.Int64
			sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
				if now.Add(1) > 20 {
					now.Add(-1)
					refused.Add(1)
					return test.refuse(ctx)
				}
				defer now.Add(-1)
				return deliver(ctx, e)
			}
			cfg := auto
			cfg.DeliveryTimeout = time.Second
			d, stop := begin(t, &endless{}, sink, cfg)
			<-time.After(30 * time.Second)
			before, limits, delivered := refused.Load(), 0, int64(0)
			for range 30 { // the limit of one moment may be that of an experiment
				limits += limitOf(d)
				delivered += sink.in(time.Second)
			}
			refusals := refused.Load() - before
			stop()
			if n := limits / 30; n > test.limit || delivered < 4800 || float64(refusals) > test.part*float64(delivered) {
				t.Errorf("the limit is %d on average, %d delivered and %d refused in 30 s; want %d at most, at least 4,800 of 6,000, and %v of these at most", n, delivered, refusals, test.limit, test.part)
			}
		})
	}
}

// A real HTTP server that works on 20 requests at once: the limit is found, and the destination is named as what limits.
//
// CONTRACT: C-38, C-97
func TestAutoFindsTheKneeOfAnHTTPServer(t *testing.T) {
	const knee = 20
	places := make(chan struct{}, knee)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		places <- struct{}{}
		<-time.After(150 * time.Millisecond) // its work
		<-places
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	sink, err := httpsink.New(spec.HTTPSink{URL: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, stop := begin(t, &endless{}, sink, auto)
	found := func() bool {
		s := d.Snapshot()
		return s.LimitedBy == dispatcher.LimitedByDestination && limitOf(d) >= knee*3/4 && limitOf(d) <= knee*3/2
	}
	took := passes(t, time.Minute, "the limit is found", found)
	t.Logf("%v after %v: %v", d.Snapshot().TopicLimits, took, d.Snapshot().Decisions)
	stop()
}

// Events whose failure is their own lower nothing, and are not said to be the destination's limit.
//
// CONTRACT: C-38, C-97
func TestAutoDoesNotBlameTheDestinationForOwnFaults(t *testing.T) {
	for _, part := range []float64{0.05, 0.2} {
		synctest.Test(t, func(t *testing.T) {
			sink := newBearing(1000, 20*time.Millisecond)
			deliver := sink.Respond
			sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
				if err := deliver(ctx, e); err != nil || rand.Float64() >= part {
					return err
				}
				return errFault
			}
			cfg := auto
			cfg.MaxConcurrency = 64
			d, stop := begin(t, &endless{}, sink, cfg)
			said := map[dispatcher.LimitedBy]int{}
			for range 150 {
				<-time.After(time.Second)
				said[d.Snapshot().LimitedBy]++
			}
			stop()
			need.That(t, said[dispatcher.LimitedByDestination] < 50, "with %v of the events at fault themselves it was limited by %v, in so many of 150 seconds", part, said)
		})
	}
}

// A connection that was kept and ends without a byte of a response, as where a worker is recycled, spends no attempt. An event that ends
// each connection is dead all the same.
//
// CONTRACT: C-24, C-32
func TestKeptConnectionThatEndsSpendsNoAttempt(t *testing.T) {
	type served struct{}
	var mu sync.Mutex
	requests, ended := map[string]int{}, 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		id, n := r.Header.Get("Ce-Id"), r.Context().Value(served{}).(*int)
		*n++
		if requests[id]++; r.Header.Get("Ce-Type") == "Bad" || *n == 3 && requests[id] == 1 {
			ended++
			conn, _, err := http.NewResponseController(w).Hijack()
			need.OK(t, err)
			_ = conn.Close()
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, served{}, new(int))
	}
	server.Start()
	t.Cleanup(server.Close)
	sink, err := httpsink.New(spec.HTTPSink{URL: server.URL}, nil)
	need.OK(t, err)
	store := storetest.NewMemory()
	store.Add("orders", 40)
	_, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"orders"}, Concurrency: 1, MaxAttempts: 2, Backoff: dispatcher.ExponentialBackoff(time.Millisecond, time.Millisecond)})
	delivered(t, time.Minute, store, "orders", 40)
	mu.Lock()
	need.That(t, store.Attempts("orders") == 40 && ended >= 10, "%d attempts are spent on 40 events, and %d connections ended; want 40 and ten at least", store.Attempts("orders"), ended)
	mu.Unlock()
	store.AddLike(dispatcher.Event{Topic: "orders", EventType: "Good"}, 2)
	store.AddLike(dispatcher.Event{Topic: "orders", EventType: "Bad"}, 1)
	passes(t, time.Minute, "the event that ends connections is dead", func() bool { return store.Count("orders", "dead") == 1 })
	stop()
	bad := store.IDs()[42].String()
	need.That(t, requests[bad] <= 3, "it was sent %d times, want once more than its two attempts at most", requests[bad])
}
