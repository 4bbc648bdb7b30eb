package engine_test

import (
	"context"
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

// A wake-up finds what is there: many rows, large ones, and those that are to be marked dead.
func TestWakeClaimsWhatIsThere(t *testing.T) {
	for name, test := range map[string]struct {
		change string // of the rows
		rows   int
	}{
		"one row":            {rows: 1},
		"many rows":          {rows: 300},
		"a large row":        {rows: 1, change: `payload = to_jsonb(repeat('x', 200000))`},
		"a row to mark dead": {rows: 1, change: `attempts = 10`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			store := &countingStore{Store: r.store()}
			config := asleep("orders")
			config.MaxBytes = 1 << 20
			d := r.start(store, &book{}, config)
			r.eventually("it has looked, and sleeps", func() bool { return store.claims.Load() > 0 })
			r.enqueue("orders", test.rows)
			if test.change != "" {
				pgtest.Exec(r, `update outbox.outbox_events set `+test.change+` where live`)
			}
			d.Wake()
			r.eventually("nothing is left", func() bool { return r.count("live") == 0 })
		})
	}
}
