package engine_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestRunOnceDeliversAsManyAsRequested(t *testing.T) {
	r := newRig(t)
	for range 6 {
		r.enqueue("orders", 3)
		r.enqueue("invoices", 3)
	}
	sink := &book{}
	for _, step := range []struct{ n, delivered int }{{1, 1}, {10, 10}, {0, 0}, {1000, 25}, {1000, 0}} {
		got, err := r.once(sink, dispatcher.Config{BatchSize: 4}, step.n)
		want := (engine.Outcome{Delivered: step.delivered})
		need.That(t, got == want && err == nil, "RunOnce(%d) returned %+v, %v; want %+v", step.n, got, err, want)
	}
	need.Want(t, 36, "%d of 36 rows are delivered", r.count("status = 'delivered' and attempts = 1"))
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
	need.Want(t, 1, "the row was touched", r.count("status = 'pending' and attempts = 0"))
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
			claimed := false
			store := before(r.store(), func(c storetest.Call) error {
				if c.Verb == "claim" && claimed {
					return errNoDatabase
				}
				claimed = claimed || c.Verb == "claim"
				return nil
			})
			got, err := r.engine(store, sink, dispatcher.Config{Concurrency: 1}).RunOnce(ctx, test.n)
			need.That(t, got == test.want && dispatcher.IsUnavailable(err) == dispatcher.IsUnavailable(test.err),
				"RunOnce returned %+v, %v; want %+v, %v", got, err, test.want, test.err)
			need.That(t, (err == nil) == (test.err == nil) && (err == nil || strings.Contains(err.Error(), test.err.Error())),
				"RunOnce returned %v; want it to say %v", err, test.err)
			need.Want(t, test.waits, "%d events wait, want %d", r.count("status = 'pending' and attempts = 0 and last_error <> ''"))
		})
	}
}

var errNoDatabase = errors.New("no database")

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
	need.That(t, d.Run(t.Context()) != nil, "a second Run was started")
	need.That(t, need.Err(d.RunOnce(t.Context(), 1)) != nil, "RunOnce was started during Run")
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
	need.Want(t, 5, "%d of 5 rows were left alone", r.count("status = 'pending' and attempts = 0"))
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
	need.That(t, mostBytes <= maxBytes+size && mostBytes >= maxBytes/2, "up to %d bytes were in flight, want about %d", mostBytes, maxBytes)
	limit := 5 + 5*40
	need.That(t, most <= limit, "up to %d rows were in flight, want at most %d", most, limit)
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
		got, err := r.once(&book{}, dispatcher.Config{MaxBytes: test.maxBytes}, 5)
		need.That(t, got == test.want && err == nil, "at most %d bytes: RunOnce returned %+v, %v; want %+v", test.maxBytes, got, err, test.want)
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

// backlogVariable names the environment variable with the rows that TestStartOnBacklogReadsFewRows starts on.
const backlogVariable = "OUTBOX_TEST_BACKLOG"

// A dispatcher that starts on a million rows, of which the server knows no statistics, reads no more of
// them before its first deliveries, or for any of its queries, than one that starts on two thousand;
// and it keeps a few of them in memory.
// CONTRACT: C-2 C-96
func TestStartOnBacklogReadsFewRows(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	backlog := 1_000_000
	if n, err := strconv.Atoi(os.Getenv(backlogVariable)); err == nil {
		backlog = n
	}
	r := newRig(t)
	pgtest.Exec(r, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
	once := func(c rig) {
		sink := &book{}
		_, err := c.once(sink, dispatcher.Config{}, 500)
		need.OK(t, err)
		sink.wantOnce(t, 500)
	}
	r.enqueue("big", 2000)
	few := r.buffers(once)
	r.enqueue("big", backlog)
	r.enqueue("small", 10)
	queries := map[string]func(rig){
		"schema":             func(c rig) { _, err := c.store().Schema(t.Context()); need.OK(t, err) },
		"topics":             func(c rig) { _, err := c.store().Topics(t.Context()); need.OK(t, err) },
		"oldest transaction": func(c rig) { _, err := c.store().OldestTransaction(t.Context()); need.OK(t, err) },
	}
	for name, query := range queries {
		n := r.buffers(query)
		need.That(t, n <= 1000, "%s: read %d buffers", name, n)
	}
	depth := r.buffers(func(c rig) { _, err := c.store().Depth(t.Context(), nil); need.OK(t, err) })
	many := r.buffers(once)
	t.Logf("500 deliveries read %d buffers with 2,000 rows and %d with %d; the depth %d", few, many, backlog, depth)
	need.That(t, many <= 2*few, "500 deliveries read %d buffers with 2,000 rows and %d with %d", few, many, backlog)
	need.That(t, depth <= 3*dispatcher.DepthCap, "the depth read %d buffers", depth)

	before := heap()
	sink := newGate(0)
	d := r.start(r.store(), sink, dispatcher.Config{})
	receive(t, "an event is delivered", sink.reached)
	rows := 0
	r.eventually("it claims no more", func() bool {
		held := rows
		rows = d.Snapshot().InFlightRows
		return rows == held && pgtest.Value[int](r, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'`) == 0
	})
	grown := heap() - before
	t.Logf("it holds %d rows and %d KiB", rows, grown>>10)
	need.That(t, rows != 0 && rows <= backlog/100 && grown <= 32<<20, "it holds %d rows and %d bytes of a backlog of %d", rows, grown, backlog)
	close(sink.open)
}

// buffers counts how many buffers of the events and their indexes are read with a pool of a dispatcher
// that has just started. A session hands in its count at its end.
func (r rig) buffers(with func(rig)) int {
	r.Helper()
	pool, err := pgxpool.NewWithConfig(r.Context(), r.Config())
	need.OK(r, err)
	pgtest.HandIn(r, r.Pool)
	const count = `select (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::integer
		from pg_statio_user_tables where relid = 'outbox.outbox_events'::regclass`
	before := pgtest.Value[int](r, count)
	with(rig{r.T, pool})
	pool.Close()
	r.eventually("the sessions end", func() bool {
		return pgtest.Value[int](r, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and state is not null`) == int(r.Pool.Stat().TotalConns())-1
	})
	pgtest.HandIn(r, r.Pool)
	return pgtest.Value[int](r, count) - before
}

// heap is what the process has in memory, without garbage.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// While an old snapshot keeps millions of delivered rows in the way, listing the topics takes long.
// Then it is done less often.
func TestSlowListingIsRare(t *testing.T) {
	r := newRig(t)
	const takes = 50 * time.Millisecond
	listings := make(chan time.Time, 100) // when they began, and ended
	r.enqueue("orders", 1)
	r.start(before(r.store(), func(c storetest.Call) error {
		if c.Verb == "topics" {
			listings <- time.Now()
			<-time.After(takes)
			listings <- time.Now()
		}
		return nil
	}), &book{}, dispatcher.Config{})
	receive(t, "the first listing begins", listings)
	first, second := receive(t, "the first listing ends", listings), receive(t, "the second listing begins", listings)
	pause := second.Sub(first)
	need.That(t, pause >= 15*takes, "%v after a listing that took %v there was another one", pause, takes)
}

// asleep is a dispatcher that looks by itself at its start, and then after twenty minutes.
func asleep(topics ...string) dispatcher.Config {
	return dispatcher.Config{Topics: topics, Lease: time.Hour, PollInterval: 20 * time.Minute}
}

// listen makes a dispatcher hear the producers of its namespace, until the test ends.
func (r rig) listen(wake func(), log *logBook) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pgstore.Listen(ctx, func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, r.Pool.Config().ConnString()) },
			pgtest.Schema, "shop", wake, log.logger())
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
			r, log := newRig(t), &logBook{}
			d := r.start(r.store(), &book{}, asleep(topics...))
			r.listen(d.Wake, log)
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
	r, log, woken := newRig(t), &logBook{}, make(chan struct{}, 100)
	r.listen(func() { woken <- struct{}{} }, log)
	receive(t, "it wakes for what was missed before it listened", woken)
	pgtest.Exec(r, "select pg_notify('outbox', 'store'), pg_notify('another', 'shop'), pg_notify('outbox', '')")
	pgtest.Exec(r, "select pg_notify('outbox', 'shop')")
	receive(t, "it wakes", woken)
	need.Want(t, 0, "it woke %d times more", len(woken))
}

// A listener whose connection ends makes a new one, and wakes for what it may have missed.
func TestListenConnectsAgain(t *testing.T) {
	r, log := newRig(t), &logBook{}
	d := r.start(r.store(), &book{}, asleep("orders"))
	r.listen(d.Wake, log)
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
		need.Want(t, round+1, "the log says %d times that wake-ups are not received, want once for each of %d losses", len(log.lines("not received")))
	}
}
