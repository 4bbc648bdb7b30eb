package adopt_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// numbering is an enqueue that numbers an event of an aggregate.
func numbering(aggregate string) string {
	return `select from outbox.enqueue('shop', 'memories', '{"n": 0}', p_aggregate_type => 'memory', p_aggregate_id => '` + aggregate + `', p_options => '{"aggregateSequence": true}')`
}

// Producers that write rows of two aggregates in crossed order, and one with an old snapshot, neither wait nor fail, and
// none of their rows is refused. enqueue continues above the numbers of their table, without a gap: as soon as that is
// adopted, and after the way back.
//
// CONTRACT: C-91
func TestNumbersOfTheirTable(t *testing.T) {
	r := newRig(t, storageService())
	begin := func(level pgx.TxIsoLevel) pgx.Tx {
		t.Helper()
		tx, err := r.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err == nil {
			_, err = tx.Exec(t.Context(), `set local lock_timeout = '1s'; select count(*) from storage_outbox`)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	r.produce(t.Context(), 5) // from before
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	a, b, old := begin(pgx.ReadCommitted), begin(pgx.ReadCommitted), begin(pgx.RepeatableRead)
	for _, write := range []struct {
		tx pgx.Tx
		n  int
	}{{a, 1}, {b, 2}, {a, 202}, {b, 201}} { // of the aggregates 1, 2, 2 and 1
		if err := r.old.produce(t.Context(), write.tx, write.n); err != nil {
			t.Fatal(err)
		}
	}
	for _, tx := range []pgx.Tx{a, b} {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.produce(t.Context(), 401)
	if err := r.old.produce(t.Context(), old, 601); err != nil {
		t.Fatal(err)
	}
	if err := old.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.status(); !s.OK() || s.Theirs != 6 || s.TheirsWaiting != 0 || s.OursWaiting != 7 {
		t.Errorf("status %+v, want each row to be an event", s)
	}

	// The first number of an aggregate, by two at once.
	first := begin(pgx.ReadCommitted)
	if _, err := first.Exec(t.Context(), numbering("1")); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := r.Exec(t.Context(), numbering("1"))
		second <- err
	}()
	r.eventually("the second one waits", func() bool {
		return pgtest.Value[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, sequence_number, target_topic)
		values ('ahead', '1', 'memory', 'T', '{"n": 1}', 8, 'memories')`)
	r.exec(numbering("1"))
	r.exec(numbering("9")) // of which their table has none
	r.step(adopt.Back, adopt.None, true)
	r.exec(`drop table storage_outbox`)
	for _, aggregate := range []string{"1", "2", "5", "9", "9"} {
		r.exec(numbering(aggregate))
	}
	want := "1:3 1:4 1:9 9:1 1:10 2:2 5:2 9:2 9:3"
	if got := pgtest.Value[string](r, `select string_agg(aggregate_id || ':' || aggregate_sequence, ' ' order by seq) from outbox.outbox_events where payload ->> 'n' = '0'`); got != want {
		t.Errorf("enqueue gives %s, want %s", got, want)
	}
	if n := pgtest.Value[int](r, `select count(*) from pg_proc where proname like 'outbox\_adopt\_storage%'`); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}
