package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// waitTimeout bounds what must happen. Only a test that fails waits for it.
const waitTimeout = need.Wait

// rig is an outbox in a database of its own.
type rig struct {
	*testing.T
	*pgxpool.Pool
}

func newRig(t *testing.T) rig {
	t.Helper()
	t.Parallel()
	return rig{t, pgtest.Pool(t, pgtest.Migrated(t))}
}

// store returns a store for a new worker.
func (r rig) store() *pgstore.Store {
	return pgstore.New(r.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
}

// enqueue commits n events.
func (r rig) enqueue(topic string, n int) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', $1::text, '{"card": "4111-1111"}' from generate_series(1, $2::integer)`, topic, n)
}

// count returns the number of events that the condition holds for.
func (r rig) count(where string) (n int) {
	r.Helper()
	return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where `+where)
}

// eventually waits until the condition holds.
func (r rig) eventually(what string, holds func() bool) {
	r.Helper()
	pgtest.Eventually(r.T, what, holds)
}

// receive waits for a value.
func receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(waitTimeout):
		t.Fatalf("it did not happen in %v: %s", waitTimeout, what)
	}
	return value
}

// running is a Dispatcher in Run.
type running struct {
	*engine.Dispatcher
	t      *testing.T
	cancel context.CancelFunc
	ended  chan error
}

// start runs a dispatcher until stop, or until the test ends.
func (r rig) start(store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) *running {
	r.Helper()
	return r.run(r.engine(store, sink, cfg))
}

// engine makes a dispatcher. What cfg leaves out is made quick.
func (r rig) engine(store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) *engine.Dispatcher {
	r.Helper()
	d, err := engine.New(store, sink, quick(cfg))
	need.OK(r, err)
	return d
}

// run is start for a dispatcher that is there.
func (r rig) run(d *engine.Dispatcher) *running {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Dispatcher: d, t: r.T, cancel: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- d.Run(ctx) }()
	r.Cleanup(run.stop)
	return run
}

func quick(cfg dispatcher.Config) dispatcher.Config {
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.PollInterval == 0 {
		cfg.PollInterval = min(50*time.Millisecond, cfg.Lease/3)
	}
	if cfg.Backoff == nil {
		cfg.Backoff = dispatcher.ExponentialBackoff(2*time.Millisecond, 20*time.Millisecond)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// stop ends Run and waits for it. It may be called again.
func (run *running) stop() {
	run.t.Helper()
	run.cancel()
	select {
	case err, ok := <-run.ended:
		if ok {
			close(run.ended)
		}
		if err != nil {
			run.t.Errorf("Run returned %v", err)
		}
	case <-time.After(waitTimeout):
		run.t.Fatal("Run did not return")
	}
}

// book is a Sink that writes down what it delivers.
type book struct {
	// respond returns the result of an event. Defaults to a success.
	respond func(context.Context, *dispatcher.Event) error
	batch   int // BatchSize. Defaults to 1.

	began, confirmed sinktest.Recording
}

func (b *book) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	b.began.Deliver(context.Background(), batch)
	return (&sinktest.Func{Respond: b.respond, Confirmed: &b.confirmed}).Deliver(ctx, batch)
}

func (*book) Probe(context.Context) error { return nil }
func (b *book) BatchSize() int            { return max(b.batch, 1) }
func (*book) Close(context.Context) error { return nil }

// begun returns the attempts of each event that were begun, in order.
func (b *book) begun() map[uuid.UUID][]int {
	attempts := map[uuid.UUID][]int{}
	for _, e := range b.began.Events() {
		attempts[e.ID] = append(attempts[e.ID], e.Attempt)
	}
	return attempts
}

// delivered returns the number of events, and of confirmations.
func (b *book) delivered() (events, times int) {
	all, ids := b.confirmed.Events(), map[uuid.UUID]bool{}
	for _, e := range all {
		ids[e.ID] = true
	}
	return len(ids), len(all)
}

// wantOnce fails the test unless so many events were confirmed, each once.
func (b *book) wantOnce(t *testing.T, want int) {
	t.Helper()
	n, times := b.delivered()
	need.That(t, n == want && times == want, "%d events were confirmed %d times, want %d once each", n, times, want)
}

// topic returns the number of confirmations of a topic.
func (b *book) topic(name string) (n int) {
	for _, e := range b.confirmed.Events() {
		if e.Topic == name {
			n++
		}
	}
	return n
}

// before is a store that calls a function before each call.
func before(store dispatcher.Store, do func(storetest.Call) error) dispatcher.Store {
	return &storetest.Hooked{Store: store, Before: func(_ context.Context, c storetest.Call) error { return do(c) }}
}

// counting counts the calls of a store by their verbs.
type counting struct {
	storetest.Hooked
	mu    sync.Mutex
	calls map[string]int64
}

func newCounting(store dispatcher.Store) *counting {
	c := &counting{calls: map[string]int64{}}
	c.Hooked = storetest.Hooked{Store: store, Before: func(_ context.Context, call storetest.Call) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls[call.Verb]++
		return nil
	}}
	return c
}

func (c *counting) n(verb string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[verb]
}

// logBook is what a dispatcher logs, at every level.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lines returns the lines that contain the word.
func (l *logBook) lines(word string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, word) {
			lines = append(lines, line)
		}
	}
	return lines
}

// watcher is an Observer that counts.
type watcher struct {
	mu                                      sync.Mutex
	claimed, delivered, acked, failed, lost int
	refused, claimsRefused                  int
	deadEvents                              []dispatcher.DeadEvent
	waited, latest                          time.Duration
}

func (w *watcher) note(note func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note()
}

func (w *watcher) Claimed(_ string, n int) { w.note(func() { w.claimed += n }) }
func (w *watcher) Delivered(_ *dispatcher.Event, waited, _ time.Duration) {
	w.note(func() { w.delivered++; w.waited = max(w.waited, waited) })
}
func (w *watcher) Acked(_ *dispatcher.Event, latency time.Duration) {
	w.note(func() { w.acked++; w.latest = max(w.latest, latency) })
}
func (w *watcher) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {
	w.note(func() { w.failed++ })
}
func (w *watcher) DeadLettered(d dispatcher.DeadEvent) {
	w.note(func() { w.deadEvents = append(w.deadEvents, d) })
}
func (w *watcher) LeaseLost(n int)     { w.note(func() { w.lost += n }) }
func (w *watcher) Refused(n int)       { w.note(func() { w.refused += n }) }
func (w *watcher) ClaimRefused()       { w.note(func() { w.claimsRefused++ }) }
func (w *watcher) Expired(string, int) {}

func (w *watcher) losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

var errRefused = errors.New("the consumer returned 500")
