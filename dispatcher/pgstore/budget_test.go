package pgstore_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// newServer is an outbox on a server that is otherwise idle.
func newServer(t *testing.T) (planned, *postgres.Server) {
	t.Helper()
	srv := pgtest.Server(t)
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), conn, pgtest.Schema); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	if size := pgtest.Value[int](p.outbox, `select max(size_bytes) from outbox.outbox_events`); size != 200 {
		p.Fatalf("the payload and empty headers have %d bytes, want 200", size)
	}

	store := p.Store("shop", uuid.New())
	var held [][]dispatcher.Lease
	claimed := p.wal(func() {
		for range batches {
			req := share("orders", batch)
			req.Fair = fair
			c, err := store.Claim(p.Context(), req)
			if err != nil || len(c.Events) != batch {
				p.Fatalf("claimed %d events, %v", len(c.Events), err)
			}
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
	if updated != events || hot < events*95/100 {
		p.Errorf("%d of %d claims were HOT, want 95%% of %d", hot, updated, events)
	}
	if perEvent := (claimed + acked) / events; perEvent > written {
		p.Errorf("claim and ack write %d bytes of WAL for an event, want at most %d", perEvent, written)
	}
	if perEvent := (inserted + claimed + acked) / events; perEvent > each {
		p.Errorf("insert, claim and ack write %d bytes of WAL for an event, want at most %d", perEvent, each)
	}
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
func TestBacklogBehindSnapshot(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	if _, err := tx.Exec(t.Context(), `select count(*) from outbox.outbox_events`); err != nil {
		t.Fatal(err)
	}

	store := p.Store("shop", uuid.New())
	began := time.Now()
	reads := make([]int64, 0, 40)
	for range cap(reads) {
		before := p.blocks()
		claimed, err := store.Claim(t.Context(), share("orders", 500))
		if err != nil || len(claimed.Events) != 500 {
			t.Fatalf("claimed %d events, %v", len(claimed.Events), err)
		}
		reads = append(reads, p.blocks()-before)
		if lost, err := store.Ack(t.Context(), leasesOf(claimed.Events)); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, %v", lost, err)
		}
	}
	costly := 0
	for _, n := range reads {
		if n > reads[0]*3/2 {
			costly++
		}
	}
	t.Logf("buffers that a claim of 500 read: %v", reads)
	// Now and then a claim starts at the front. On a slow machine that is a few of the forty.
	if allowed := int(time.Since(began)/pgstore.FullPass) + 1; costly > allowed {
		t.Errorf("%d claims read half as much again as the first, want at most %d", costly, allowed)
	}
}
