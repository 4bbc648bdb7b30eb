package engine_test

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// backlogVariable names the environment variable with the rows that TestStartOnBacklog starts on.
const backlogVariable = "OUTBOX_TEST_BACKLOG"

// A dispatcher that starts on a million rows, of which the server knows no statistics, reads no more of
// them before its first deliveries, or for any of its queries, than one that starts on two thousand;
// and it keeps a few of them in memory.
// CONTRACT: C-2 C-96
func TestStartOnBacklog(t *testing.T) {
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
		if _, err := c.once(sink, dispatcher.Config{}, 500); err != nil {
			t.Fatal(err)
		}
		if n, _ := sink.delivered(); n != 500 {
			t.Errorf("%d events were delivered, want 500", n)
		}
	}
	r.enqueue("big", 2000)
	few := r.buffers(once)
	r.enqueue("big", backlog)
	r.enqueue("small", 10)
	queries := map[string]func(rig){
		"schema":             func(c rig) { _, err := c.store().Schema(t.Context()); must(t, err) },
		"topics":             func(c rig) { _, err := c.store().Topics(t.Context()); must(t, err) },
		"oldest transaction": func(c rig) { _, err := c.store().OldestTransaction(t.Context()); must(t, err) },
	}
	for name, query := range queries {
		if n := r.buffers(query); n > 1000 {
			t.Errorf("%s: read %d buffers", name, n)
		}
	}
	depth := r.buffers(func(c rig) { _, err := c.store().Depth(t.Context(), nil); must(t, err) })
	many := r.buffers(once)
	t.Logf("500 deliveries read %d buffers with 2,000 rows and %d with %d; the depth %d", few, many, backlog, depth)
	if many > 2*few {
		t.Errorf("500 deliveries read %d buffers with 2,000 rows and %d with %d", few, many, backlog)
	}
	if depth > 3*dispatcher.DepthCap {
		t.Errorf("the depth read %d buffers", depth)
	}

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
	if rows == 0 || rows > backlog/100 || grown > 32<<20 {
		t.Errorf("it holds %d rows and %d bytes of a backlog of %d", rows, grown, backlog)
	}
	close(sink.open)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// buffers counts how many buffers of the events and their indexes are read with a pool of a dispatcher
// that has just started. A session hands in its count at its end.
func (r rig) buffers(with func(rig)) int {
	r.Helper()
	pool, err := pgxpool.NewWithConfig(r.Context(), r.Config())
	if err != nil {
		r.Fatal(err)
	}
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

// slowToList is a store whose listing of topics takes a while, and that writes down when.
type slowToList struct {
	dispatcher.Store
	takes  time.Duration
	begun  chan time.Time
	ending chan time.Time
}

func (s slowToList) Topics(ctx context.Context) ([]string, error) {
	s.begun <- time.Now()
	defer func() { s.ending <- time.Now() }()
	<-time.After(s.takes)
	return s.Store.Topics(ctx)
}

// While an old snapshot keeps millions of delivered rows in the way, listing the topics takes long.
// Then it is done less often.
func TestSlowListingIsRare(t *testing.T) {
	r := newRig(t)
	store := slowToList{r.store(), 50 * time.Millisecond, make(chan time.Time, 100), make(chan time.Time, 100)}
	r.enqueue("orders", 1)
	r.start(store, &book{}, dispatcher.Config{})
	receive(t, "the first listing begins", store.begun)
	first := receive(t, "the first listing ends", store.ending)
	second := receive(t, "the second listing begins", store.begun)
	if pause := second.Sub(first); pause < 15*store.takes {
		t.Errorf("%v after a listing that took %v there was another one", pause, store.takes)
	}
}
