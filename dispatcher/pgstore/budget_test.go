package pgstore_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// newServer is an outbox on a server that is otherwise idle.
func newServer(t *testing.T) (planned, *postgres.Server) {
	t.Helper()
	srv := pgtest.Server(t)
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	need.OK(t, err)
	need.OK(t, need.Err(migrations.Up(t.Context(), conn, pgtest.Schema)))
	need.OK(t, conn.Close(t.Context()))
	return newPlanned(t, srv.DSN("postgres")), srv
}

// An event costs a bounded number of WAL bytes, and a claim touches no index. Both are counts: they
// are the same on any machine. The journal costs nothing while it is off, and then a bounded number too.
//
// CONTRACT: C-61
// REQUIREMENT: OVERVIEW-4
func TestBudgetsOfWALAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	for name, test := range map[string]struct {
		deletes, journal bool
		fair             bool  // with the index of tenants
		written, each    int64 // bytes of claim and ack, and with the insert
	}{
		"kept":                {false, false, false, 450, 1100},
		"deleted":             {true, false, false, 300, 950},
		"kept, journal on":    {false, true, false, 1200, 2300},
		"deleted, journal on": {true, true, false, 1050, 2150},
		"kept, fair":          {false, false, true, 450, 1250},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := newServer(t)
			p.deletes = test.deletes
			if test.fair {
				upTenants(t, p.Pool)
			}
			if test.journal {
				pgtest.Exec(p, `select outbox.outbox_journal_set(true)`)
			}
			p.wantBudget(test.written, test.each, test.fair)
		})
	}
}

func (p planned) wantBudget(written, each int64, fair bool) {
	const (
		batch   = 100
		batches = 100
		events  = batch * batches
	)
	// 200 bytes of payload, no dedupe key.
	inserted := p.wal(func() {
		for range batches {
			pgtest.Exec(p, `select outbox.enqueue('shop', 'orders', jsonb_build_object('k', repeat('x', 191))) from generate_series(1, $1::integer)`, batch)
		}
	})
	size := pgtest.Value[int](p.outbox, `select max(size_bytes) from outbox.outbox_events`)
	need.Must(p, size == 200, "the payload and empty headers have %d bytes, want 200", size)

	store := p.Store("shop", uuid.New())
	var held [][]dispatcher.Lease
	claimed := p.wal(func() {
		for range batches {
			req := share("orders", batch)
			req.Fair = fair
			c, err := store.Claim(p.Context(), req)
			need.Must(p, err == nil && len(c.Events) == batch, "claimed %d events, %v", len(c.Events), err)
			held = append(held, leasesOf(c.Events))
		}
	})
	pgtest.HandIn(p, p.Pool)
	hot := pgtest.Value[int](p.outbox, `select n_tup_hot_upd from pg_stat_user_tables where relid = 'outbox.outbox_events'::regclass`)
	updated := pgtest.Value[int](p.outbox, `select n_tup_upd from pg_stat_user_tables where relid = 'outbox.outbox_events'::regclass`)

	acked := p.wal(func() {
		for _, leases := range held {
			if lost, err := store.Ack(p.Context(), leases); err != nil || len(lost) > 0 {
				p.Fatalf("lost %v, %v", lost, err)
			}
		}
	})
	p.Logf("WAL bytes per event: %d to insert, %d to claim, %d to ack; %d of %d claims HOT", inserted/events, claimed/events, acked/events, hot, updated)
	need.That(p, updated == events && hot >= events*95/100, "%d of %d claims were HOT, want 95%% of %d", hot, updated, events)
	perEvent := (claimed + acked) / events
	need.That(p, perEvent <= written, "claim and ack write %d bytes of WAL for an event, want at most %d", perEvent, written)
	perEvent = (inserted + claimed + acked) / events
	need.That(p, perEvent <= each, "insert, claim and ack write %d bytes of WAL for an event, want at most %d", perEvent, each)
}

// wal is how many bytes of WAL the server writes meanwhile.
func (p planned) wal(work func()) int64 {
	p.Helper()
	const position = `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`
	before := pgtest.Value[int64](p.outbox, position)
	work()
	return pgtest.Value[int64](p.outbox, position) - before
}

// Claims of a backlog stay as cheap as the first, even when a long transaction keeps the entries of
// delivered rows in the index.
func TestBacklogBehindASnapshotStaysCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	dsn := pgtest.Migrated(t)
	p := newPlanned(t, dsn)
	if pgtest.Value[int](p.outbox, `select current_setting('server_version_num')::integer`) < 15_0000 {
		t.Skip("before 15 a server reports what a session read after a second, in which the claims change")
	}
	p.fill(20_000, "orders")
	snapshot := newOutbox(t, dsn)
	tx, err := snapshot.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	need.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	need.OK(t, need.Err(tx.Exec(t.Context(), `select count(*) from outbox.outbox_events`)))

	store := p.Store("shop", uuid.New())
	began := time.Now()
	reads := make([]int64, 0, 40)
	for range cap(reads) {
		before := p.blocks()
		claimed, err := store.Claim(t.Context(), share("orders", 500))
		need.Must(t, err == nil && len(claimed.Events) == 500, "claimed %d events, %v", len(claimed.Events), err)
		reads = append(reads, p.blocks()-before)
		acked(t, store, claimed.Events)
	}
	costly := 0
	for _, n := range reads {
		if n > reads[0]*3/2 {
			costly++
		}
	}
	t.Logf("buffers that a claim of 500 read: %v", reads)
	// Now and then a claim starts at the front. On a slow machine that is a few of the forty.
	allowed := int(time.Since(began)/pgstore.FullPass) + 1
	need.That(t, costly <= allowed, "%d claims read half as much again as the first, want at most %d", costly, allowed)
}

// planned is an outbox that is looked at through one connection, without autovacuum: what the
// planner knows of it, and what the server counts, is up to the test.
type planned struct{ outbox }

func newPlanned(t *testing.T, dsn string) planned {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	need.OK(t, err)
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepare has the session's statements for itself
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	need.OK(t, err)
	t.Cleanup(pool.Close)
	p := planned{outbox{T: t, Pool: pool, stores: pool}}
	pgtest.Exec(p, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
	return p
}

// plan is a node of a plan, as EXPLAIN prints it.
type plan struct {
	Type   string `json:"Node Type"`
	Index  string `json:"Index Name"`
	Rows   int    `json:"-"` // a fraction from 18 on, where a node runs several times
	Loops  int    `json:"Actual Loops"`
	Off    int    `json:"Rows Removed by Filter"`
	Hit    int    `json:"Shared Hit Blocks"`
	Read   int    `json:"Shared Read Blocks"`
	Parts  []plan `json:"Plans"`
	millis float64
}

func (p *plan) UnmarshalJSON(text []byte) error {
	type fields plan
	node := struct {
		*fields
		Rows float64 `json:"Actual Rows"`
	}{fields: (*fields)(p)}
	err := json.Unmarshal(text, &node)
	p.Rows = int(math.Round(node.Rows))
	return err
}

func (p plan) buffers() int { return p.Hit + p.Read }

// looked is how many rows its scans read.
func (p plan) looked() (n int) {
	if strings.HasSuffix(p.Type, "Scan") && p.Type != "CTE Scan" {
		n = (p.Rows + p.Off) * p.Loops
	}
	for _, part := range p.Parts {
		n += part.looked()
	}
	return n
}

// written is how many rows it changed.
func (p plan) written() (n int) {
	if p.Type == "ModifyTable" {
		return p.Rows
	}
	for _, part := range p.Parts {
		n += part.written()
	}
	return n
}

// has reports whether a node of the type is in the plan.
func (p plan) has(nodeType string) bool {
	if p.Type == nodeType {
		return true
	}
	for _, part := range p.Parts {
		if part.has(nodeType) {
			return true
		}
	}
	return false
}

// indexes are the names of those that the plan uses.
func (p plan) indexes() map[string]bool {
	names := map[string]bool{}
	if p.Index != "" {
		names[p.Index] = true
	}
	for _, part := range p.Parts {
		for name := range part.indexes() {
			names[name] = true
		}
	}
	return names
}

// prepare makes the plans of claim and ack as of now. They are kept until the next prepare.
func (p planned) prepare() {
	p.Helper()
	pgtest.Exec(p, `deallocate all`)
	pgtest.Exec(p, `prepare claim as `+pgstore.ClaimSQL())
	pgtest.Exec(p, `prepare ack as `+pgstore.AckSQL())
	p.claim("none", 1)
	p.ack("none")
}

const worker = "01900000-0000-7000-8000-000000000001"

// claim claims rows of a topic from the front of its range.
func (p planned) claim(topic string, limit int) plan {
	p.Helper()
	return p.explain(fmt.Sprintf(`execute claim ('shop', '{%s}', '{%d}', '{0001-01-01}',
		'{00000000-0000-0000-0000-000000000000}', 10, 33554432, '%s', '1 minute', false, 33554432, null)`, topic, limit, worker))
}

// ack acks all leased rows of a topic. They have the same lease number.
func (p planned) ack(topic string) plan {
	p.Helper()
	const leased = `from outbox.outbox_events where live and namespace = 'shop' and topic = $1 and status = 'processing'`
	ids := pgtest.Value[string](p.outbox, `select coalesce(array_agg(id order by id)::text, '{}') `+leased, topic)
	number := pgtest.Value[int64](p.outbox, `select coalesce(max(lease), 1) `+leased, topic)
	return p.explain(fmt.Sprintf(`execute ack ('%s', %d, '%s')`, ids, number, worker))
}

// explain runs a statement with the settings of the hot path, for real, and returns its plan.
func (p planned) explain(sql string) plan {
	p.Helper()
	ctx := p.Context()
	tx, err := p.Begin(ctx)
	need.OK(p, err)
	defer tx.Rollback(ctx)
	var text []byte
	if _, err = tx.Exec(ctx, pgstore.Settings); err == nil {
		err = tx.QueryRow(ctx, `explain (analyze, buffers, format json) `+sql).Scan(&text)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	need.Must(p, err == nil, "explain %s: %v", sql, err)
	var out []struct {
		Plan   plan    `json:"Plan"`
		Millis float64 `json:"Execution Time"`
	}
	need.OK(p, json.Unmarshal(text, &out))
	out[0].Plan.millis = out[0].Millis
	return out[0].Plan
}

// A dispatcher's rights are enough, and the size grows with the table. CONTRACT: C-95
func TestSizesGrowWithTheTable(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	sizes := func() map[string]int64 {
		found, err := o.Store("shop", uuid.New()).(*pgstore.Store).Sizes(t.Context())
		need.OK(t, err)
		return found
	}
	empty := sizes()
	o.fill(1000, "orders")
	filled := sizes()
	need.That(t, len(empty) == 2 && empty["outbox_dead_letters"] != 0 && filled["outbox_dead_letters"] == empty["outbox_dead_letters"], "empty: %v, filled: %v", empty, filled)
	need.That(t, filled["outbox_events"] >= empty["outbox_events"]+1000*100, "1000 rows took the table from %d to %d bytes", empty["outbox_events"], filled["outbox_events"])
}

// RowsVariable names the environment variable with the number of rows of TestStatementsKeepTheirPlansAmongAMillionRows. Set it to 10000000
// to see that ten times as many make no difference.
const RowsVariable = "OUTBOX_TEST_ROWS"

// TestStatementsKeepTheirPlansAmongAMillionRows puts a million rows of one topic next to a few of others, and looks at what the
// statements then do. Loading them takes most of its time, so all that needs them is in here.
// REQUIREMENT: OVERVIEW-4, OVERVIEW-5, STORAGE-12, MODKIT-2
func TestStatementsKeepTheirPlansAmongAMillionRows(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	million := 1_000_000
	if text := os.Getenv(RowsVariable); text != "" {
		var err error
		million, err = strconv.Atoi(text)
		need.Must(t, err == nil, "%s: %v", RowsVariable, err)
	}
	p := newPlanned(t, pgtest.Migrated(t))
	p.fill(5, "first")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	p.prepare() // on a table of one page: these plans are kept, as a dispatcher's are
	p.fill(1000, "before", "after")
	alone := p.claim("before", 100)
	p.fill(million, "big")
	p.wantIndexPlans("plans kept from a table of one page")
	p.prepare()
	p.wantIndexPlans("stale statistics")
	neighbour := p.claim("after", 100)
	t.Logf("claim of 100: %d buffers alone, %d (%.1f ms) next to a million rows of another topic", alone.buffers(), neighbour.buffers(), neighbour.millis)
	// The live index is higher by now: its descent reads a few pages more.
	need.That(t, neighbour.buffers() <= alone.buffers()+3,
		"a claim reads %d buffers next to a million rows of another topic, and %d without them", neighbour.buffers(), alone.buffers())
	p.wantExpiredCheap()
	p.markDead("after", million)
	dead := p.claim("after", 100)
	t.Logf("claim of 100: %d buffers (%.1f ms) among %d rows of its topic that are not due, and as many delivered", dead.buffers(), dead.millis, million)
	need.That(t, dead.Rows == 100 && dead.buffers() <= alone.buffers()*3/2,
		"a claim reads %d buffers among rows that are not due or delivered, and %d without them", dead.buffers(), alone.buffers())

	pgtest.Exec(p, `delete from pg_statistic where starelid = 'outbox.outbox_events'::regclass`)
	pgtest.Exec(p, `update pg_class set reltuples = -1, relpages = 0 where oid in (
		select 'outbox.outbox_events'::regclass union select indexrelid from pg_index where indrelid = 'outbox.outbox_events'::regclass)`)
	p.prepare()
	p.wantIndexPlans("empty statistics")
	pgtest.Exec(p, `analyze outbox.outbox_events`)
	p.prepare()
	p.wantIndexPlans("fresh statistics")
}

// markDead adds n rows of a topic that are due in an hour or more, and n that are delivered.
func (p planned) markDead(topic string, n int) {
	p.Helper()
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at)
		select (lpad(to_hex(n), 8, 'a') || substr(md5(n::text), 1, 24))::uuid, 'shop', $1, '{}', now() + make_interval(hours => 1, secs => n)
		from generate_series(1, $2::integer) as n`, topic, n)
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, status, attempts)
		select (lpad(to_hex(n), 8, 'b') || substr(md5(n::text), 1, 24))::uuid, 'shop', $1, '{}', 'delivered', 1
		from generate_series(1, $2::integer) as n`, topic, n)
}

// wantIndexPlans claims and acks rows of the big topic. Neither reads the table from end to end, nor
// sorts.
// CONTRACT: C-2
func (p planned) wantIndexPlans(when string) {
	p.Helper()
	claim := p.claim("big", 100)
	ack := p.ack("big")
	p.Logf("%s: claim %d buffers, %.1f ms; ack %d buffers, %.1f ms", when, claim.buffers(), claim.millis, ack.buffers(), ack.millis)
	for _, test := range []struct {
		verb, index string
		plan        plan
	}{{"claim", "outbox_events_live", claim}, {"ack", "outbox_events_pkey", ack}} {
		need.Want(p, 100, "%s: %s wrote %d rows, want 100", test.plan.written(), when, test.verb)
		for _, bad := range []string{"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"} {
			need.That(p, !test.plan.has(bad), "%s: %s has a %s: %+v", when, test.verb, bad, test.plan)
		}
		n := test.plan.buffers()
		need.That(p, n <= 1500, "%s: %s of 100 rows read %d buffers", when, test.verb, n)
		got := slices.Collect(maps.Keys(test.plan.indexes()))
		need.That(p, slices.Equal(got, []string{test.index}), "%s: %s uses the indexes %v, want %s", when, test.verb, got, test.index)
	}
}

// wantExpiredCheap: expired leases are found at the front of the range, with no search behind it.
// CONTRACT: C-2
func (p planned) wantExpiredCheap() {
	p.Helper()
	fresh := p.claim("big", 100)
	pgtest.Exec(p, `update outbox.outbox_events set locked_until = now() - interval '1 second' where live and status = 'processing' and topic = 'big'`)
	expired := p.claim("big", 100)
	p.Logf("claim of 100 expired of a million: %d buffers, %.1f ms", expired.buffers(), expired.millis)
	pgtest.Want(p.outbox, 100, "%d rows were claimed again, want 100", `select count(*) from outbox.outbox_events where topic = 'big' and suspicion = 1`)
	need.That(p, expired.buffers() <= 2*fresh.buffers(), "a claim of expired rows reads %d buffers, one of pending rows %d", expired.buffers(), fresh.buffers())
	p.ack("big")
}

// blocks is how many buffers of the events, the dead letters and their indexes this connection has read.
func (p planned) blocks() int64 {
	p.Helper()
	pgtest.HandIn(p, p.Pool)
	return pgtest.Value[int64](p.outbox, `select sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
		from pg_statio_user_tables where relid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)`)
}
