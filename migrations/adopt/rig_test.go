package adopt_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

func TestMain(m *testing.M) {
	// Its WAL can be decoded, and reaches the disk only when a client waits for it.
	pgtest.Settings = map[string]string{"wal_level": "logical", "max_wal_senders": "10", "wal_writer_delay": "10s"}
	pgtest.Main(m)
}

// rig is a database with an outbox and a table of theirs.
type rig struct {
	*testing.T
	*pgxpool.Pool
	old oldService
}

func newRig(t *testing.T, old oldService) rig {
	t.Helper()
	t.Parallel()
	r := rig{t, pgtest.Pool(t, pgtest.Migrated(t)), old}
	r.exec(old.ddl)
	return r
}

func (r rig) exec(sql string, args ...any) {
	r.Helper()
	args = append([]any{pgx.QueryExecModeSimpleProtocol}, args...)
	_, err := r.Exec(r.Context(), sql, args...)
	need.Must(r, err == nil, "%.200s: %v", sql, err)
}

// try does a step on a connection of its own.
func (r rig) try(step adopt.Step, o adopt.Options) (result adopt.Result, err error) {
	r.Helper()
	conn, err := r.Acquire(r.Context())
	need.OK(r, err)
	defer conn.Release()
	spec := adopt.Spec{}
	if step == adopt.ToShadow {
		spec = r.old.spec
	}
	return adopt.Apply(r.Context(), conn.Conn(), pgtest.Schema, step, spec, o)
}

func (r rig) step(step adopt.Step, state adopt.State, changed bool) adopt.Result {
	r.Helper()
	result, err := r.try(step, adopt.Options{})
	need.Must(r, err == nil && result.State == state && result.Changed == changed,
		"%s: state %q, changed %v, %v; want %q, %v", step, result.State, result.Changed, err, state, changed)
	return result
}

// status returns the status of the only adoption.
func (r rig) status() adopt.Status {
	r.Helper()
	conn, err := r.Acquire(r.Context())
	need.OK(r, err)
	defer conn.Release()
	all, err := adopt.Read(r.Context(), conn.Conn(), pgtest.Schema, "")
	need.Must(r, err == nil && len(all) == 1, "%d adoptions: %v", len(all), err)
	return all[0]
}

// produce commits an event with the number.
func (r rig) produce(ctx context.Context, n int) {
	r.Helper()
	err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error { return r.old.produce(ctx, tx, n) })
	need.Must(r, err == nil, "a producer got %v", err)
}

func (r rig) eventually(what string, holds func() bool) {
	r.Helper()
	pgtest.Eventually(r, what, holds)
}

// ledger is what became of the numbers of events.
type ledger struct {
	sync.Mutex
	committed, rolledBack map[int]bool
	theirs, ours          map[int]int // deliveries
}

func newLedger() *ledger {
	return &ledger{committed: map[int]bool{}, rolledBack: map[int]bool{}, theirs: map[int]int{}, ours: map[int]int{}}
}

func (l *ledger) do(change func()) {
	l.Lock()
	defer l.Unlock()
	change()
}

// Deliver implements dispatcher.Sink.
func (l *ledger) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	l.do(func() {
		for _, e := range batch {
			l.ours[number(string(e.Payload))]++
		}
	})
	return make([]error, len(batch))
}
func (*ledger) Probe(context.Context) error { return nil }
func (*ledger) BatchSize() int              { return 50 }
func (*ledger) Close(context.Context) error { return nil }

// number reads a payload, {"n": 7}.
func number(payload string) int {
	_, text, _ := strings.Cut(payload, `"n":`)
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimRight(strings.TrimSpace(text), "}")))
	if err != nil {
		panic(payload)
	}
	return n
}

// dispatch runs a dispatcher until the function that it returns is called.
func (r rig) dispatch(l *ledger) (stop func()) {
	r.Helper()
	store := pgstore.New(r.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
	d, err := engine.New(store, l, dispatcher.Config{Ordering: dispatcher.OrderingKey, Logger: slog.New(slog.DiscardHandler)})
	need.OK(r, err)
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return func() {
		cancel()
		need.Want(r, nil, "the dispatcher: %v", <-done)
	}
}

// work runs their worker until the function that it returns is called.
func (r rig) work(l *ledger, passes int) (stop func()) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() {
		for pass := passes; ; pass++ {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-time.After(5 * time.Millisecond):
			}
			if err := r.old.work(r.Context(), r.Pool, l, pass); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() {
		cancel()
		need.Want(r, nil, "their worker: %v", <-done)
	}
}
