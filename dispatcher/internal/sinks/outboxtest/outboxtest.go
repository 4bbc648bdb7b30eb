// Package outboxtest delivers a whole outbox to a real destination, and compares what arrived with what
// was committed: the test of a sink together with the engine and the database.
package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// waitTimeout bounds a run. Only a test that fails waits for it.
const waitTimeout = 4 * time.Minute

// Run is one outbox and where it goes. A test package with a Run needs pgtest.Main.
type Run struct {
	// Sink is what delivers. Deliver closes it.
	Sink dispatcher.Sink
	// Topic of the events. Defaults to orders.
	Topic string
	// Events is how many there are, and Keys how many aggregates they are of, in turns.
	Events, Keys int
	// Server is killed and started again when half of the events were confirmed. nil: Halfway is called.
	Server sinktest.Server
	// Halfway is called once, during the deliveries, when half of the events were confirmed, to do something
	// else to the destination. With neither, nothing may arrive twice.
	Halfway func()
	// Arrived returns all messages that the destination has, in its order for each key.
	Arrived func() []sinktest.Message
}

// Events is n, or what the environment variable OUTBOX_TEST_EVENTS says. With -short it ends the test.
func Events(t *testing.T, n int) int {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long, and shows no race that the others do not")
	}
	if text := os.Getenv("OUTBOX_TEST_EVENTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("OUTBOX_TEST_EVENTS: %v", err)
		}
	}
	return n
}

// Deliver commits the events, delivers them in the order of their keys, and checks that each arrived,
// with its payload and its key, in the order of its key, and confirmed ones no second time. It logs the
// rate and how many arrived twice.
func Deliver(t *testing.T, run Run) {
	t.Helper()
	if run.Topic == "" {
		run.Topic = "orders"
	}
	if run.Server != nil {
		run.Halfway = func() { sinktest.Kill(t, run.Server)() }
	}
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	exec(t, pool, `insert into outbox.outbox_events (id, namespace, topic, aggregate_type, aggregate_id, payload)
		select gen_random_uuid(), 'shop', $1::text, 'order', 'key-' || n % $3::integer, jsonb_build_object('n', n, 'pad', repeat('x', 180))
		from generate_series(0, $2::integer - 1) as n`, run.Topic, run.Events, run.Keys)
	exec(t, pool, `analyze outbox.outbox_events`)
	took := deliver(t, pool, run)
	compare(t, pool, run)
	t.Logf("%d events in %.1f s: %.0f a second", run.Events, took.Seconds(), float64(run.Events)/took.Seconds())
}

// deliver runs the engine until every row is delivered.
func deliver(t *testing.T, pool *pgxpool.Pool, run Run) time.Duration {
	t.Helper()
	store := pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
	progress := &progress{half: int64(run.Events / 2), all: int64(run.Events), halfway: make(chan struct{}), done: make(chan struct{})}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	d, err := engine.New(store, run.Sink, dispatcher.Config{
		Topics: []string{run.Topic}, Ordering: dispatcher.OrderingKey, BatchSize: 2000, MaxAttempts: 1000,
		Backoff: dispatcher.ExponentialBackoff(50*time.Millisecond, time.Second), Logger: log, Observer: progress,
	})
	need.OK(t, err)
	ctx, stop := context.WithTimeout(t.Context(), waitTimeout)
	defer stop()
	var wg sync.WaitGroup
	began := time.Now()
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Errorf("the engine: %v", err)
		}
	})
	if run.Halfway != nil {
		select {
		case <-progress.halfway:
			run.Halfway()
		case <-ctx.Done():
		}
	}
	select {
	case <-progress.done:
	case <-ctx.Done():
		t.Errorf("%d of %d events were delivered within %s; the engine says: %+v", progress.acked.Load(), run.Events, waitTimeout, d.Snapshot())
	}
	took := time.Since(began)
	stop()
	wg.Wait()
	if err := run.Sink.Close(t.Context()); err != nil {
		t.Errorf("close the sink: %v", err)
	}
	return took
}

// compare reads both ends.
func compare(t *testing.T, pool *pgxpool.Pool, run Run) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select id::text, seq, aggregate_id, (payload->>'n')::integer as n from outbox.outbox_events where status = 'delivered'`)
	need.OK(t, err)
	type committed struct {
		ID  string
		Seq int64
		Key string `db:"aggregate_id"`
		N   int
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[committed])
	need.OK(t, err)
	need.Want(t, run.Events, "%d rows are marked delivered, want %d", len(all))
	byID := make(map[string]committed, len(all))
	for _, c := range all {
		byID[c.ID] = c
	}
	seen, last, twice := make(map[string]bool, len(all)), map[string]int64{}, 0
	for _, m := range run.Arrived() {
		c, known := byID[m.Attributes["id"]]
		switch {
		case !known:
			t.Fatalf("event %s arrived and was never committed", m.Attributes["id"])
		case seen[c.ID]:
			twice++
			continue
		case m.Attributes["aggregateid"] != c.Key || m.Attributes["partitionkey"] != c.Key || m.Attributes["sequence"] != fmt.Sprintf("%019d", c.Seq):
			t.Fatalf("event %s of %+v arrived with %v", c.ID, c, m.Attributes)
		case c.Seq <= last[c.Key]:
			t.Fatalf("key %s: event %d arrived after event %d", c.Key, c.Seq, last[c.Key])
		case number(m.Payload) != c.N:
			t.Fatalf("event %s: the payload arrived as %s, want n = %d", c.ID, m.Payload, c.N)
		}
		seen[c.ID], last[c.Key] = true, c.Seq
	}
	need.Want(t, run.Events, "%d of %d events arrived", len(seen))
	if twice > 0 && run.Halfway == nil {
		t.Errorf("%d events arrived twice, and nothing failed", twice)
	}
	t.Logf("%d events arrived, %d of them twice", len(seen), twice)
}

// number is the payload's n, or -1.
func number(payload string) int {
	p := struct{ N int }{-1}
	if json.Unmarshal([]byte(payload), &p) != nil {
		return -1
	}
	return p.N
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	need.OK(t, need.Err(pool.Exec(t.Context(), sql, args...)))
}

// progress signals when half of the events, and all, are marked delivered.
type progress struct {
	half, all     int64
	acked         atomic.Int64
	halfway, done chan struct{}
}

func (p *progress) Acked(*dispatcher.Event, time.Duration) {
	switch p.acked.Add(1) {
	case p.half:
		close(p.halfway)
	case p.all:
		close(p.done)
	}
}

func (*progress) Claimed(string, int)                                           {}
func (*progress) Delivered(*dispatcher.Event, time.Duration, time.Duration)     {}
func (*progress) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {}
func (*progress) Expired(string, int)                                           {}
func (*progress) DeadLettered(dispatcher.DeadEvent)                             {}
func (*progress) LeaseLost(int)                                                 {}
func (*progress) Refused(int)                                                   {}
func (*progress) ClaimRefused()                                                 {}

// Settings returns what a dispatcher reads of an object whose spec has this YAML, such as a sink, and whose namespace is shop.
// Each file of a Secret or ConfigMap is KEY in the folder NAME of dir, which may be empty.
func Settings(t testing.TB, dir, text string) spec.Config {
	t.Helper()
	dispatcher, path := map[string]any{"namespace": "shop"}, filepath.Join(t.TempDir(), "object.yaml")
	need.OK(t, yaml.UnmarshalStrict([]byte(text), &dispatcher))
	need.OK(t, objects.Write(path, "orders", dispatcher, map[string]any{"secretRef": map[string]any{"name": "orders-db"}}))
	c, err := document.Load(path, document.Options{Secrets: dir})
	need.OK(t, err)
	return c
}
