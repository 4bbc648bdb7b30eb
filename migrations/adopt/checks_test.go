package adopt_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
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
	for state, want := range map[string]string{`'RETRY'`: `1 rows of table public.keyed have "RETRY" in column state`, `null`: `have null in column state`} {
		r.exec(`insert into keyed (id, state) values (4, ` + state + `)`)
		s := r.status()
		need.That(t, !s.OK() && s.Unknown() == 1 && s.Values[0].Means == adopt.MeansUnknown, "status %+v, want a row whose status is not known", s)
		need.Fails(t, want, "got %v, want %q", need.Err(r.try(adopt.Cutover, adopt.Options{})))
		r.exec(`delete from keyed where id = 4`)
	}
	r.exec(`insert into keyed (id, state) values (4, 'FAILED')`)
	r.old.spec.Columns["status"] = "state:NEW:SENT,FAILED"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	moved := r.step(adopt.Cutover, adopt.Live, true)
	need.Want(t, 1, "%d rows moved, want the one that is NEW", moved.Moved)
}

// A worker that knows no limit has tried a row more often than a dispatcher would.
func TestRowThatWasTriedIsSent(t *testing.T) {
	r := newRig(t, keyedService("integer", `, tries integer not null default 0, primary key (id))`))
	r.old.spec.Columns["attempts"] = "tries"
	r.exec(`insert into keyed (id, tries) values (1, 0), (2, 25), (3, 32000)`)
	got := r.step(adopt.ToShadow, adopt.Shadow, true).Warnings
	need.That(t, len(got) == 1 && strings.HasPrefix(got[0], "2 open rows have no attempt left: each has 20 more"), "warnings %q, want the rows that have no attempt left", got)
	r.step(adopt.Cutover, adopt.Live, true)
	pgtest.Want(r, "0 of -, 25 of 45, 980 of 1000", "attempts %s", `select string_agg(attempts || ' of ' || coalesce(max_attempts::text, '-'), ', ' order by seq) from outbox.outbox_events`)
	l := newLedger()
	r.exec(`update outbox.outbox_events set payload = jsonb_build_object('n', attempts)`)
	defer r.dispatch(l)()
	r.deliverAll()
	need.Want(t, 3, "%d of 3 events were sent", len(l.ours))
}

// Where few rows of a large table are open, an index on their status finds them, whatever its type.
//
// CONTRACT: C-91
func TestIndexFindsOpenRows(t *testing.T) {
	condition := regexp.MustCompile(`from "public"."keyed" as t where (.+) order by`)
	for kind, test := range map[string]struct{ open, closed string }{
		"boolean": {"false", "true"}, "mood": {"glad", "sad"}, "smallint": {"0", "1"}, "character(4)": {"N", "S"}, "varchar": {"NEW", "SENT"}, "text": {"NEW", "SENT"},
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id)); create type mood as enum ('glad', 'sad', 'other');
				alter table keyed alter state drop default; alter table keyed alter state type `+kind+` using null, alter state set default '`+test.open+`'; create index on keyed (state)`))
			r.old.spec.Columns["status"] = "state:" + test.open + ":" + test.closed
			r.exec(`insert into keyed (id, state) select n, case when n > 4997 then '` + test.open + `' else '` + test.closed + `' end::` + kind + ` from generate_series(1, 5000) as n; analyze keyed`)
			r.step(adopt.ToShadow, adopt.Shadow, true)
			dry, err := r.try(adopt.Cutover, adopt.Options{DryRun: true})
			where := condition.FindStringSubmatch(strings.Join(dry.SQL, "\n"))
			need.Must(t, err == nil && where != nil, "%v; %q", err, dry.SQL)
			if plan := pgtest.Value[string](r, `explain (format json, costs off) select from keyed as t where `+where[1]); !strings.Contains(plan, "keyed_state_idx") {
				t.Errorf("where %s, the rows are found by %s", where[1], plan)
			}
			r.exec(`insert into keyed (id) values (5001)`)
			moved := r.step(adopt.Cutover, adopt.Live, true)
			r.exec(`insert into keyed (id) values (5002)`)
			s := r.status()
			need.That(t, s.OK() && moved.Moved == 4 && s.OpenRows == 0 && s.OpenEvents == 5, "%d rows moved, status %+v", moved.Moved, s)
			back := r.step(adopt.Back, adopt.None, true)
			need.Want(t, 5, "returned %d", back.Returned)
		})
	}
}

// Their worker deletes what it has sent.
//
// CONTRACT: C-91
func TestWorkerThatDeletesWhatItHasSent(t *testing.T) {
	r := newRig(t, oldService{
		spec: adopt.Spec{Name: "queue", Layout: adopt.Columns, Table: "public.queue", Namespace: "shop", Topic: "orders", Columns: map[string]string{"id": "id", "payload": "data", "sent": "delete"}},
		ddl:  `create table queue (id bigint generated always as identity primary key, data jsonb not null, extra text, at timestamptz not null default now())`,
	})
	insert := func(first, last int) {
		r.exec(fmt.Sprintf(`insert into queue (data, extra) select jsonb_build_object('n', n), 'x' || n from generate_series(%d, %d) as n`, first, last))
	}
	insert(1, 3)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	insert(4, 6)
	r.exec(`delete from queue where data ->> 'n' in ('1', '4')`) // their worker
	s := r.status()
	need.That(t, s.OK() && s.Rows == 2 && s.OpenRows == 4, "in the shadow: %+v", s)
	moved := r.step(adopt.Cutover, adopt.Live, true)
	need.Want(t, 4, "%d rows moved, want 4", moved.Moved)
	insert(7, 8)
	r.exec(`insert into queue (data) values (jsonb_build_object('n', 9, 'large', repeat('x', 1100000)))`)
	s = r.status()
	need.That(t, !s.OK() && s.Refused == 1 && s.OpenRows == 1 && s.OpenEvents == 6 && s.Extra == 0, "after the cut-over: %+v", s)
	r.exec(`update queue set data = '{"n": 9}'`)
	s = r.status()
	need.That(t, s.OK() && s.OpenRows == 0 && s.OpenEvents == 7, "after a row was corrected: %+v", s)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' in ('2', '7')`)
	back := r.step(adopt.Back, adopt.None, true)
	need.Want(t, 5, "%d events returned, want 5", back.Returned)
	pgtest.Want(r, "3:3x3 5:5x5 6:6x6 8:8x8 9:9", "their table has %s", `select string_agg(id || ':' || (data ->> 'n') || coalesce(extra, ''), ' ' order by id) from queue`)
}

// Rows that share a dedupe key are counted once each, also when one is opened again: in the shadow, and live.
//
// CONTRACT: C-91
func TestRowsOfOneDedupeKeyAreCounted(t *testing.T) {
	for _, mark := range []string{"status=state:NEW:SENT", "sent=delete"} {
		t.Run(mark, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id))`))
			name, column, _ := strings.Cut(mark, "=")
			delete(r.old.spec.Columns, "status")
			r.old.spec.Columns[name], r.old.spec.Columns["dedupeKey"] = column, "kind"
			counted := func(when string, waiting int64) {
				t.Helper()
				s := r.status()
				need.That(t, s.OK() && s.OpenEvents == waiting, "%s: %+v, want %d events that wait", when, s, waiting)
			}
			r.step(adopt.ToShadow, adopt.Shadow, true)
			r.exec(`insert into keyed (id) values (1), (2)`)
			counted("in the shadow", 0)
			r.step(adopt.Cutover, adopt.Live, true)
			counted("after the cut-over", 2)
			r.exec(`insert into keyed (id) values (3)`)
			counted("live", 3)
			if name == "status" {
				r.exec(`update keyed set state = 'NEW', data = '{"n": 3}' where id = 3`)
				counted("opened again", 4)
			}
			got := pgtest.Value[int](r, `select count(distinct dedupe_key) from outbox.outbox_events where dedupe_key like 'a%'`)
			need.That(t, int64(got) == r.status().OpenEvents, "%d dedupe keys", got)
		})
	}
}

// A trigger of theirs finds names by a path that the adoption's function does not have.
//
// CONTRACT: C-91
func TestShadowReportsTriggersWithoutPath(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table audit (id integer);
		create function note() returns trigger language plpgsql as 'begin insert into audit values (new.id); return new; end';
		create trigger changed after update on keyed for each row execute function note();
		create trigger added after insert on keyed for each row execute function note()`))
	r.exec(`insert into keyed (id) values (1)`)
	const remedy = `alter function public.note() set search_path = "public", pg_temp`
	if got := r.step(adopt.ToShadow, adopt.Shadow, true).Warnings; len(got) != 1 || !strings.HasPrefix(got[0], "trigger changed calls public.note(), which has no search_path of its own") || !strings.HasSuffix(got[0], remedy) {
		t.Errorf("warnings %q, want the trigger of updates", got)
	}
	moved := r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, moved.Moved == 0 && moved.Refused == 1, "%+v, want the row refused", moved)
	r.exec(remedy)
	moved = r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, moved.Moved == 1 && moved.Refused == 0, "%+v, want the row moved", moved)
	s := r.status()
	need.That(t, s.OK() && len(s.Warnings) == 0, "status %+v", s)
}

// The status says what the trigger costs producers at SERIALIZABLE.
func TestShadowReportsSerializableProducers(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	err := pgx.BeginTxFunc(t.Context(), r.Pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `insert into keyed (id) values (1)`)
		return err
	})
	if s := r.status(); err != nil || !s.OK() || len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], "1 new rows were inserted at the isolation level SERIALIZABLE") {
		t.Errorf("status %+v, %v", s, err)
	}
}

// A due time that is mapped, and of another zone, is reported: it may be meant so.
func TestShadowReportsDueTimesOfAnotherZone(t *testing.T) {
	r := newRig(t, keyedService("integer", `, due timestamp, primary key (id))`))
	r.old.spec.Columns["due"] = "due"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`insert into keyed (id, due) values (1, now()), (2, now() + interval '5 hours')`)
	if s := r.status(); len(s.Warnings) != 2 || !strings.HasPrefix(s.Warnings[1], "1 new rows are due up to 05:00:00 from when they were inserted, by column due, which has no time zone") {
		t.Errorf("warnings %q", s.Warnings)
	}
}

// A dry run says how long producers would wait.
func TestDryRunOfCutoverSaysHowLongItWaits(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	r.exec(`insert into keyed (id) select n from generate_series(1, 400) as n`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	got, err := r.try(adopt.Cutover, adopt.Options{DryRun: true})
	need.That(t, err == nil && got.Moved == 400 && got.Wait > 0, "%d rows, %v, %v", got.Moved, got.Wait, err)
}

// What refuses a cut-over is found before producers wait: a transaction that holds the table does not hold it up.
func TestCutoverReadsTheTableBeforeItLocks(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	r.exec(`insert into keyed (id) values (1), (2)`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	producer := pgtest.Begin(r, `insert into keyed (id) values (3)`)
	conn, err := r.Acquire(t.Context())
	need.OK(t, err)
	defer conn.Release()
	for _, want := range []string{"more than 1 rows", `have "RETRY" in column state`} {
		need.Fails(t, want, "got %v, want %q", need.Err(adopt.Apply(t.Context(), conn.Conn(), pgtest.Schema, adopt.Cutover, adopt.Spec{}, adopt.Options{MaxRows: 1})))
		r.exec(`insert into keyed (id, state) values (4, 'RETRY') on conflict do nothing`)
	}
	need.OK(t, producer.Commit(t.Context()))
	// No producer has waited for the first count, when that is ended.
	pgtest.Begin(r, `lock table keyed in access exclusive mode`)
	done := make(chan error, 1)
	go func() {
		_, err := r.try(adopt.Cutover, adopt.Options{})
		done <- err
	}()
	r.eventually("the count is ended", func() bool {
		return len(done) > 0 || pgtest.Value[int](r, `select count(pg_cancel_backend(pid)) from pg_locks where relation = 'keyed'::regclass and not granted`) > 0
	})
	const want = "57014); no producer has waited: to count the values of column state took longer than 30m0s"
	need.Fails(t, want, "got %v, want %q", <-done)
}

// A statement for which producers wait has a limit, which grows with the rows that it moves.
func TestStepsHaveALimitWhileProducersWait(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table limits (step text);
		create function note() returns trigger language plpgsql set search_path = public as
			'begin insert into limits values (new.state || '' '' || current_setting(''statement_timeout'')); return new; end';
		create trigger noted before update on keyed for each row execute function note()`))
	r.exec(`insert into keyed (id) values (1), (2)`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.step(adopt.Back, adopt.None, true)
	pgtest.Want(r, "SENT 600010ms, NEW 600010ms", "limits %s", `select string_agg(distinct step, ', ' order by step desc) from limits`)
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

// A step that waits for their table names who holds that, and no dispatcher.
func TestStepNamesWhoHoldsTheirTable(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	pgtest.Begin(r, `lock table outbox.outbox_events in row exclusive mode`) // a dispatcher
	producer := pgtest.Begin(r, `insert into keyed (id) values (1)`)
	conn, err := r.Acquire(t.Context())
	need.OK(t, err)
	defer conn.Release()
	var said string
	ctx := migrations.ReportWaits(t.Context(), func(sentence string) {
		said = sentence
		_ = producer.Rollback(t.Context())
	})
	need.OK(t, need.Err(adopt.Apply(ctx, conn.Conn(), pgtest.Schema, adopt.ToShadow, r.old.spec, adopt.Options{})))
	want := fmt.Sprintf(`waiting for a lock on table "public"."keyed", which the process %d of user `, producer.Conn().PgConn().PID())
	need.That(t, strings.HasPrefix(said, want), "it reports %q, want %q", said, want)
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

	// The first number of an aggregate, by two at once.
	first := begin(pgx.ReadCommitted)
	need.OK(t, need.Err(first.Exec(t.Context(), numbering("1"))))
	second := make(chan error, 1)
	go func() {
		_, err := r.Exec(t.Context(), numbering("1"))
		second <- err
	}()
	r.eventually("the second one waits", func() bool {
		return pgtest.Value[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	need.OK(t, first.Commit(t.Context()))
	need.OK(t, <-second)
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

// An enqueue that numbers an event while the way back has locked their table waits for it, and neither fails.
func TestBackWhileEnqueueNumbers(t *testing.T) {
	r := newRig(t, storageService())
	r.produce(t.Context(), 5)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	hold := pgtest.Begin(r, `select from outbox.outbox_adoptions for update`) // back stops there, with their table locked
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
	need.OK(t, hold.Commit(t.Context()))
	need.OK(t, errors.Join(<-back, <-enqueued))
	pgtest.Want(r, 2, "enqueue gives %d, want 2", `select aggregate_sequence from outbox.outbox_events where payload ->> 'n' = '0'`)
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
	need.OK(t, err)
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
	need.Want(t, "false", "the shadow waits with the counters locked: %s", counters)
	need.OK(t, producer.Commit(t.Context()))
	need.OK(t, <-shadow)
	other.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(numbering("1"))
	pgtest.Want(r, 4, "enqueue gives %d, want 4", `select aggregate_sequence from outbox.outbox_events`)
	apply := func(step adopt.Step, name string) adopt.Result {
		t.Helper()
		conn, err := r.Acquire(t.Context())
		need.OK(t, err)
		defer conn.Release()
		result, err := adopt.Apply(t.Context(), conn.Conn(), pgtest.Schema, step, adopt.Spec{Name: name}, adopt.Options{})
		need.OK(t, err)
		return result
	}
	apply(adopt.Cutover, "storage")
	apply(adopt.Cutover, "other")
	before := pgtest.Value[string](r, `select string_agg(ctid || aggregate_id || xmax, ' ') from outbox.outbox_aggregate_sequences`)
	apply(adopt.Back, "storage")
	pgtest.Want[string](r, before, "the way back writes %s, where there was %s", `select string_agg(ctid || aggregate_id || xmax, ' ') from outbox.outbox_aggregate_sequences`)
	r.exec(`drop table other_outbox`)
	got := apply(adopt.Back, "other").Warnings
	need.That(t, len(got) == 1, "warnings %q, want one of the numbers", got)
}
