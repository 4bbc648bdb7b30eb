package adopt_test

import (
	"errors"
	"fmt"
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
	if n := pgtest.Value[int](r, `select count(*) from pg_proc where proname like any ('{outbox\\_adopt\\_storage%,outbox\\_numbers\\_storage%}')`); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// An enqueue that numbers an event while the way back has locked their table waits for it, and neither fails.
func TestBackWhileEnqueueNumbers(t *testing.T) {
	r := newRig(t, storageService())
	r.produce(t.Context(), 5)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	hold, err := r.Begin(t.Context())
	if err == nil {
		_, err = hold.Exec(t.Context(), `select from outbox.outbox_adoptions for update`) // back stops there, with their table locked
	}
	if err != nil {
		t.Fatal(err)
	}
	back, enqueued := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := r.try(adopt.Back, adopt.Options{})
		back <- err
	}()
	locks := `select exists (select from pg_locks where relation = 'storage_outbox'::regclass and mode = '%s' and granted = %t)`
	r.eventually("their table is locked", func() bool {
		return pgtest.Value[bool](r, fmt.Sprintf(locks, "AccessExclusiveLock", true))
	})
	go func() {
		_, err := r.Exec(t.Context(), numbering("5"))
		enqueued <- err
	}()
	r.eventually("enqueue waits", func() bool { return pgtest.Value[bool](r, fmt.Sprintf(locks, "AccessShareLock", false)) })
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-back, <-enqueued); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Value[int](r, `select aggregate_sequence from outbox.outbox_events where payload ->> 'n' = '0'`); got != 2 {
		t.Errorf("enqueue gives %d, want 2", got)
	}
}

// While the shadow waits for their table, enqueue does not wait for it. Of two adoptions of a namespace the greater number counts, and
// the way back writes down only what no counter has. Where the table was dropped first, it warns.
func TestNumbersOfTwoTables(t *testing.T) {
	r := newRig(t, storageService())
	other := r
	other.old.spec.Name, other.old.spec.Table = "other", "public.other_outbox"
	r.produce(t.Context(), 1)
	r.produce(t.Context(), 201)
	r.exec(`create table other_outbox (like storage_outbox including all); insert into other_outbox select * from storage_outbox`)
	r.exec(`alter table storage_outbox alter sequence_number drop not null;
		insert into storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, target_topic, delivery_status)
		values ('null', '7', 'memory', 'T', '{"n": 7}', 'memories', 'delivered')`)
	producer, err := r.Begin(t.Context())
	if err == nil {
		err = r.old.produce(t.Context(), producer, 401)
	}
	if err != nil {
		t.Fatal(err)
	}
	shadow := make(chan error, 1)
	go func() {
		_, err := r.try(adopt.ToShadow, adopt.Options{})
		shadow <- err
	}()
	counters := ""
	r.eventually("the shadow waits", func() bool {
		counters = pgtest.Value[string](r, `select coalesce(max(waiting.granted::text), '') || coalesce(string_agg(counters.mode, ' '), '')
			from pg_locks as waiting left join pg_locks as counters on counters.pid = waiting.pid and counters.granted and counters.relation = 'outbox.outbox_aggregate_sequences'::regclass
			where waiting.relation = 'storage_outbox'::regclass and not waiting.granted`)
		return counters != ""
	})
	if counters != "false" {
		t.Errorf("the shadow waits with the counters locked: %s", counters)
	}
	if err := producer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-shadow; err != nil {
		t.Fatal(err)
	}
	other.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(numbering("1"))
	if got := pgtest.Value[int](r, `select aggregate_sequence from outbox.outbox_events`); got != 4 {
		t.Errorf("enqueue gives %d, want 4", got)
	}
	apply := func(step adopt.Step, name string) adopt.Result {
		t.Helper()
		conn, err := r.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		result, err := adopt.Apply(t.Context(), conn.Conn(), pgtest.Schema, step, adopt.Spec{Name: name}, adopt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	apply(adopt.Cutover, "storage")
	apply(adopt.Cutover, "other")
	before := pgtest.Value[string](r, `select string_agg(ctid || aggregate_id || xmax, ' ') from outbox.outbox_aggregate_sequences`)
	apply(adopt.Back, "storage")
	if after := pgtest.Value[string](r, `select string_agg(ctid || aggregate_id || xmax, ' ') from outbox.outbox_aggregate_sequences`); after != before {
		t.Errorf("the way back writes %s, where there was %s", after, before)
	}
	r.exec(`drop table other_outbox`)
	if got := apply(adopt.Back, "other").Warnings; len(got) != 1 {
		t.Errorf("warnings %q, want one of the numbers", got)
	}
}
