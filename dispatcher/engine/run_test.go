package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestRunOnce(t *testing.T) {
	r := newRig(t)
	for range 6 {
		r.enqueue("orders", 3)
		r.enqueue("invoices", 3)
	}
	sink := &book{}
	for _, step := range []struct{ n, delivered int }{{1, 1}, {10, 10}, {0, 0}, {1000, 25}, {1000, 0}} {
		got, err := r.once(sink, dispatcher.Config{BatchSize: 4}, step.n)
		if want := (engine.Outcome{Delivered: step.delivered}); got != want || err != nil {
			t.Errorf("RunOnce(%d) returned %+v, %v; want %+v", step.n, got, err, want)
		}
	}
	if n := r.count("status = 'delivered' and attempts = 1"); n != 36 {
		t.Errorf("%d of 36 rows are delivered", n)
	}
}

// Every topic gets its turn, also with more topics than rows in a claim.
func TestRunOnceFindsEveryTopic(t *testing.T) {
	r := newRig(t)
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', 'topic-' || n % 30, '{}' from generate_series(1, 60) as n`)
	got, err := r.once(&book{}, dispatcher.Config{BatchSize: 7}, 1000)
	if got.Delivered != 60 || err != nil {
		t.Errorf("RunOnce returned %+v, %v; want 60 delivered", got, err)
	}
}

func TestRunOnceReportsWhatIsUnreachable(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 1)
	gate := &sinktest.Switch{Sink: &book{}}
	gate.Down.Store(true)
	if got, err := r.once(gate, dispatcher.Config{}, 1); got != (engine.Outcome{}) || !dispatcher.IsUnavailable(err) {
		t.Errorf("RunOnce returned %+v, %v; want what the probe said", got, err)
	}
	if got, err := r.once(&book{}, dispatcher.Config{Paused: true}, 1); got != (engine.Outcome{}) || err == nil {
		t.Errorf("a paused dispatcher returned %+v, %v; want an error", got, err)
	}
	if r.count("status = 'pending' and attempts = 0") != 1 {
		t.Error("the row was touched")
	}
}

// A probe may succeed, and every event finds its destination unreachable all the same. That is an error, unless others are
// delivered or it was stopped. It hides no other error.
func TestRunOnceFailsWhenEveryEventIsUnreachable(t *testing.T) {
	for name, test := range map[string]struct {
		topics  []string // of the events
		results []error  // to them, one after the other
		stopped bool
		n       int // one claim takes the events; the database refuses another
		want    engine.Outcome
		err     error
		waits   int
	}{
		"none is delivered":                {[]string{"a", "a"}, []error{errUnreachable, errUnreachable}, false, 2, engine.Outcome{Released: 2}, errUnreachable, 0},
		"another topic's is":               {[]string{"a", "b"}, []error{nil, errUnreachable}, false, 2, engine.Outcome{Released: 1, Delivered: 1}, nil, 0},
		"another of its topic is":          {[]string{"a", "a"}, []error{nil, errUnreachable}, false, 2, engine.Outcome{Released: 1, Delivered: 1}, nil, 1},
		"stopped":                          {[]string{"a"}, []error{errUnreachable}, true, 1, engine.Outcome{Released: 1}, nil, 0},
		"the database is unreachable, too": {[]string{"a"}, []error{errUnreachable}, false, 2, engine.Outcome{Released: 1}, errNoDatabase, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, topic := range test.topics {
				r.enqueue(topic, 1)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			call := -1
			sink := &book{respond: func(context.Context, *dispatcher.Event) error {
				if test.stopped {
					stop()
				}
				call++
				return test.results[call]
			}}
			d, err := engine.New(&oneClaim{Store: r.store()}, sink, quick(dispatcher.Config{Concurrency: 1}))
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.RunOnce(ctx, test.n)
			if got != test.want || dispatcher.IsUnavailable(err) != dispatcher.IsUnavailable(test.err) {
				t.Errorf("RunOnce returned %+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
			if (err == nil) != (test.err == nil) || err != nil && !strings.Contains(err.Error(), test.err.Error()) {
				t.Errorf("RunOnce returned %v; want it to say %v", err, test.err)
			}
			if n := r.count("status = 'pending' and attempts = 0 and last_error <> ''"); n != test.waits {
				t.Errorf("%d events wait, want %d", n, test.waits)
			}
		})
	}
}

var errNoDatabase = errors.New("no database")

// oneClaim is a store that is unreachable after its first claim.
type oneClaim struct {
	dispatcher.Store
	done bool
}

func (s *oneClaim) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if s.done {
		return dispatcher.Claimed{}, errNoDatabase
	}
	s.done = true
	return s.Store.Claim(ctx, req)
}

func TestRunTwiceIsRefused(t *testing.T) {
	r := newRig(t)
	begun, end := make(chan struct{}), make(chan struct{})
	d := r.start(r.store(), &book{respond: func(context.Context, *dispatcher.Event) error {
		close(begun)
		<-end
		return nil
	}}, dispatcher.Config{})
	r.enqueue("orders", 1)
	receive(t, "the delivery begins", begun)
	if err := d.Run(t.Context()); err == nil {
		t.Error("a second Run was started")
	}
	if _, err := d.RunOnce(t.Context(), 1); err == nil {
		t.Error("RunOnce was started during Run")
	}
	close(end)
	d.stop()
	r.enqueue("orders", 1)
	if got, err := r.once(&book{}, dispatcher.Config{}, 5); got.Delivered != 1 || err != nil {
		t.Errorf("RunOnce after Run returned %+v, %v; want one delivered", got, err)
	}
}

// A paused dispatcher claims nothing, and still reports both of its ends.
func TestPausedDispatcherClaimsNothing(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 5)
	d := r.start(r.store(), &book{}, dispatcher.Config{Paused: true})
	r.eventually("both ends are known", func() bool {
		s := d.Snapshot()
		return s.Source.OK && s.Schema.State == dispatcher.SchemaReady && s.Sink.OK
	})
	d.stop()
	if n := r.count("status = 'pending' and attempts = 0"); n != 5 {
		t.Errorf("%d of 5 rows were left alone", n)
	}
}

// A topic with many rows does not keep another's event waiting for longer than a round.
func TestTopicsShare(t *testing.T) {
	const many = 5000
	r := newRig(t)
	r.enqueue("busy", many)
	sink, before := &book{}, make(chan int, 1)
	halfway := make(chan struct{})
	sink.respond = func(_ context.Context, e *dispatcher.Event) error {
		n := sink.topic("busy")
		switch {
		case e.Topic == "rare":
			before <- n
		case n == 1000:
			select {
			case <-halfway: // notified already
			default:
				close(halfway)
			}
		}
		return nil
	}
	const batch = 50
	r.start(r.store(), sink, dispatcher.Config{BatchSize: batch, Concurrency: 1, Topics: []string{"busy", "rare"}})
	receive(t, "a part is delivered", halfway)
	r.enqueue("rare", 1)
	at := sink.topic("busy")
	// The rows claimed before it: two batches queued, and a claim that was under way.
	if n := receive(t, "the rare event is delivered", before); n-at > 5*batch {
		t.Errorf("%d events of the busy topic were delivered before the rare one", n-at)
	}
}

// What a process holds is bounded, by rows and by bytes, however slow the destination is.
// REQUIREMENT: STORAGE-47, STORAGE-48
func TestInFlightIsBounded(t *testing.T) {
	const size, maxBytes = 100_000, 1_000_000
	r := newRig(t)
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', 'large', to_jsonb(repeat('x', $1::integer - 2)) from generate_series(1, 100)`, size)
	r.enqueue("small", 1000)
	step := make(chan struct{})
	sink := &book{respond: func(context.Context, *dispatcher.Event) error { <-step; return nil }}
	d := r.start(r.store(), sink, dispatcher.Config{BatchSize: 40, Concurrency: 5, MaxBytes: maxBytes})
	most, mostBytes := 0, int64(0)
	for range 1100 {
		s := d.Snapshot()
		most, mostBytes = max(most, s.InFlightRows), max(mostBytes, s.InFlightBytes)
		select {
		case step <- struct{}{}:
		case <-t.Context().Done():
		}
	}
	r.eventually("every row is delivered", func() bool { return r.count("status = 'delivered'") == 1100 })
	if mostBytes > maxBytes+size || mostBytes < maxBytes/2 {
		t.Errorf("up to %d bytes were in flight, want about %d", mostBytes, maxBytes)
	}
	if limit := 5 + 5*40; most > limit {
		t.Errorf("up to %d rows were in flight, want at most %d", most, limit)
	}
	r.eventually("nothing is in flight", func() bool { s := d.Snapshot(); return s.InFlightRows == 0 && s.InFlightBytes == 0 })
}

// An event that is as large as the bound is delivered, and one that is larger is dead and not read.
// CONTRACT: C-33, C-35
func TestLargeEventIsNotStuck(t *testing.T) {
	r := newRig(t)
	for _, test := range []struct {
		maxBytes int64
		want     engine.Outcome
	}{{100_002, engine.Outcome{Delivered: 1}}, {100_001, engine.Outcome{Dead: 1}}} {
		pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload)
			values (gen_random_uuid(), 'shop', 'large', to_jsonb(repeat('x', 100000)))`)
		if got, err := r.once(&book{}, dispatcher.Config{MaxBytes: test.maxBytes}, 5); got != test.want || err != nil {
			t.Errorf("at most %d bytes: RunOnce returned %+v, %v; want %+v", test.maxBytes, got, err, test.want)
		}
	}
}

// The types of claimed events are reported, delivered or not.
// CONTRACT: C-82
func TestClaimedTypesAreReported(t *testing.T) {
	r := newRig(t)
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, event_type, payload)
		select gen_random_uuid(), 'shop', 'orders', case when n % 2 = 0 then 'order.placed' else 'order.paid' end, '{}' from generate_series(1, 20) as n`)
	d := r.start(r.store(), &book{}, dispatcher.Config{})
	r.eventually("both types are reported", func() bool {
		types := d.Snapshot().EventTypes
		return len(types) == 2 && types[0].Type == "order.paid" && types[1].Type == "order.placed" && !types[0].LastSeen.IsZero()
	})
}
