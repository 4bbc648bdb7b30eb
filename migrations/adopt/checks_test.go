package adopt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// A row whose status is in neither list would stay behind with a worker that is stopped.
//
// CONTRACT: C-91
func TestCutoverRefusesUnknownStatus(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); alter table keyed alter column state drop not null`))
	r.exec(`insert into keyed (id, state) values (1, 'NEW'), (2, 'SENT'), (3, 'SENT')`)
	values := func(all []adopt.Value) string { return fmt.Sprint(all) }
	got := r.step(adopt.ToShadow, adopt.Shadow, true)
	need.That(t, values(got.Values) == `["NEW": 1 row, to be sent "SENT": 2 rows, not to be sent]`, "the shadow has %v", got.Values)
	for state, want := range map[string]string{`'RETRY'`: `1 rows of table public.keyed have "RETRY" in column state, of which it is not known whether they are to be sent`, `null`: `have null in column state`} {
		r.exec(`insert into keyed (id, state) values (4, ` + state + `)`)
		s := r.status()
		need.That(t, !s.OK() && s.Unknown() == 1 && s.Values[0].Means == adopt.MeansUnknown, "status %+v, want a row whose status is not known", s)
		need.Fails(t, want, "got %v, want %q", need.Err(r.try(adopt.Cutover, adopt.Options{})))
		r.exec(`delete from keyed where id = 4`)
	}
	r.exec(`insert into keyed (id, state) values (4, 'FAILED'), (5, 'SENDING'), (6, null)`)
	r.old.spec.Open = "r.state in ('NEW', 'SENDING')"
	got = r.step(adopt.ToShadow, adopt.Shadow, true)
	need.That(t, strings.HasPrefix(values(got.Values), `["NEW": 1 row, to be sent "SENDING": 1 row, to be sent "SENT": 2 rows, not to be sent`), "the shadow has %v", got.Values)
	moved := r.step(adopt.Cutover, adopt.Live, true)
	need.Want(t, 2, "%d rows moved, want those that are NEW or SENDING", moved.Moved)
	s := r.status()
	need.That(t, s.OK(), "%+v", s)
}

// A worker that knows no limit has tried a row more often than a dispatcher would.
func TestRowThatWasTriedIsSent(t *testing.T) {
	r := newRig(t, keyedService("integer", `, tries integer not null default 0, primary key (id))`))
	r.old.spec.Columns["attempts"] = "tries"
	r.exec(`insert into keyed (id, tries) values (1, 0), (2, 25), (3, 32000)`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	pgtest.Want(r, "0 of -, 25 of 45, 980 of 1000", "attempts %s", `select string_agg(attempts || ' of ' || coalesce(max_attempts::text, '-'), ', ' order by seq) from outbox.outbox_events`)
	l := newLedger()
	r.exec(`update outbox.outbox_events set payload = jsonb_build_object('n', attempts)`)
	defer r.dispatch(l)()
	r.deliverAll()
	need.Want(t, 3, "%d of 3 events were sent", len(l.ours))
}

// Where the table has tenants and no dedupe keys, a key is made that begins with the tenant.
//
// CONTRACT: C-12, C-91
func TestRowsOfTenantsGetKeysOfTheirs(t *testing.T) {
	const tenant = "7d0c4f4e-96a6-4f5e-8f0f-6f6d6c1f0a11"
	for idType, want := range map[string]string{"integer": "keyed/2, " + tenant + "/keyed/1", "text": "2, " + tenant + "/1"} {
		t.Run(idType, func(t *testing.T) {
			r := newRig(t, keyedService(idType, `, tenant text, primary key (id))`))
			r.old.spec.Columns["tenantId"] = "tenant"
			r.step(adopt.ToShadow, adopt.Shadow, true)
			r.exec(`insert into keyed (id, tenant) values (1, '` + tenant + `'), (2, null)`)
			moved := r.step(adopt.Cutover, adopt.Live, true)
			need.That(t, moved.Moved == 2 && moved.Refused == 0, "moved %d, refused %d", moved.Moved, moved.Refused)
			pgtest.Want[string](r, want, "dedupe keys %q, want %q", `select string_agg(dedupe_key, ', ' order by tenant_id nulls first) from outbox.outbox_events`)
		})
	}
}

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
		need.OK(t, err)
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
		need.OK(t, r.old.produce(t.Context(), write.tx, write.n))
	}
	for _, tx := range []pgx.Tx{a, b} {
		need.OK(t, tx.Commit(t.Context()))
	}
	r.produce(t.Context(), 401)
	need.OK(t, r.old.produce(t.Context(), old, 601))
	need.OK(t, old.Commit(t.Context()))
	s := r.status()
	need.That(t, s.OK() && s.Rows == 6 && s.OpenRows == 0 && s.OpenEvents == 7, "status %+v, want each row to be an event", s)

	r.exec(numbering("1"))
	r.exec(numbering("1"))
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
	pgtest.Want[string](r, want, "enqueue gives %s, want %s", `select string_agg(aggregate_id || ':' || aggregate_sequence, ' ' order by seq) from outbox.outbox_events where payload ->> 'n' = '0'`)
	pgtest.Want(r, 0, "%d functions are left", `select count(*) from pg_proc where proname like any ('{outbox\\_adopt\\_storage%,outbox\\_numbers\\_storage%}')`)
}
