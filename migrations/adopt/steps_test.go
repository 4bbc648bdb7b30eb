package adopt_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// payloads are the numbers of the events, in the order of seq.
func (r rig) numbers() string {
	r.Helper()
	return pgtest.Value[string](r, `select coalesce(string_agg(payload ->> 'n', ' ' order by seq), '') from outbox.outbox_events`)
}

// A producer that has read the table and writes later waits for a step, and the step never for it: so neither is the
// victim of a deadlock.
func TestStepsWaitForReadersWithoutDeadlock(t *testing.T) {
	r := newRig(t, storageService())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.old.spec.Topic = "memories"
	reader := pgtest.Begin(r, `select from storage_outbox`)
	r.step(adopt.ToShadow, adopt.Shadow, true) // with triggers that are there
	r.step(adopt.Cutover, adopt.Live, true)
	r.step(adopt.Cutover, adopt.Live, false)
	need.OK(t, r.old.produce(t.Context(), reader, 1))
	need.OK(t, reader.Commit(t.Context()))
	need.Want(t, "1", "events %q, want 1", r.numbers())
}

// A row keeps its due time, its attempts and its place, in both directions. One in a worker's hands waits for the end of
// its five minutes.
func TestMovedRowsKeepTimeAttemptsAndPlace(t *testing.T) {
	r := newRig(t, m10Service())
	for n := range 4 {
		r.produce(t.Context(), n)
	}
	r.exec(`update m10_recovery.outbox set process_after = '2100-01-01Z', retry_count = 30 where id = 2`)
	r.exec(`update m10_recovery.outbox set claimed_at = '2099-01-01Z', claimed_by = 'old' where id = 3`)
	r.exec(`update m10_recovery.outbox set processed_at = now() where id = 4`)
	r.exec(`update m10_recovery.outbox set created_at = created_at + interval '1 hour' where id = 1`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	result := r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, result.Moved == 3 && result.Refused == 0, "moved %d, returned %d, refused %d", result.Moved, result.Returned, result.Refused)
	need.Want(t, "1 2 0", "events %q, want those that are open, in the order of their creation", r.numbers())
	want := "0 0 f, 1 30 t, 2 0 t"
	pgtest.Want(r, want, "events %q, want %q", `select string_agg(concat_ws(' ', payload ->> 'n', attempts, next_attempt_at in ('2100-01-01Z', '2099-01-01 00:05Z')), ', ' order by payload ->> 'n')
		from outbox.outbox_events where status = 'pending' and max_attempts = 32767 and retry = '{"strategy": "PowerOfTwo"}'`)
	pgtest.Want(r, "m10/2 m10/3 m10/1", "dedupe keys %q", `select string_agg(dedupe_key, ' ' order by seq) from outbox.outbox_events`)
	r.exec(`update outbox.outbox_events set attempts = 31 where dedupe_key = 'm10/2'`)
	result = r.step(adopt.Back, adopt.None, true)
	need.That(t, result.Returned == 3, "moved %d, returned %d, refused %d", result.Moved, result.Returned, result.Refused)
	want = "1 0, 2 31 2100, 3 0 2099"
	pgtest.Want(r, want, "open rows %q, want %q", `select string_agg(concat_ws(' ', id, retry_count, nullif(extract(year from process_after at time zone 'UTC'), extract(year from now()))), ', ' order by id)
		from m10_recovery.outbox where processed_at is null and claimed_by is null`)
}

// Rows that their clean-up removes are in neither count; a row that a producer opens again is a new event, and one
// that a worker's late failure opens is not.
func TestReopenedRowBecomesNewEvent(t *testing.T) {
	r := newRig(t, overviewService())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	for n := range 4 {
		r.produce(t.Context(), n)
	}
	r.exec(`delete from outbox.events where (payload ->> 'n')::int = 0`)
	s := r.status()
	need.That(t, s.OK() && s.Rows == 3 && s.Notes == 3, "status %+v", s)
	r.step(adopt.Cutover, adopt.Live, true)
	late := `update outbox.events set status = 'pending', attempt_count = 1 where payload ->> 'n' = '1'`
	r.exec(late)
	need.Want(t, "1 2 3", "events %q after a late failure", r.numbers())
	r.exec(`update outbox.events set status = 'pending', payload = jsonb_build_object('n', 2, 'text', repeat('x', 1100000)) where payload ->> 'n' = '2'`)
	s = r.status()
	need.That(t, s.Refused == 1 && s.OpenRows == 1, "status %+v, want the row to be refused that is too large now", s)
	r.exec(`update outbox.events set status = 'pending', payload = '{"n": 12}' where payload ->> 'n' = '2'`) // fixed
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '3'`)
	r.exec(`update outbox.events set status = 'pending' where payload ->> 'n' = '3'`)
	need.Want(t, "1 2 3 12 3", "events %q after two rows were opened again", r.numbers())
	pgtest.Want(r, 5, "%d dedupe keys", `select count(distinct dedupe_key) from outbox.outbox_events`)
	pgtest.Want(r, 3, "%d events have the id of their row, want 3", `select count(*) from outbox.outbox_events where id in (select id from outbox.events)`)
	s = r.status()
	need.That(t, s.OK() && s.Rows == 3 && s.Notes == 3 && s.OpenRows == 0 && s.OpenEvents == 4, "status %+v", s)
	// Of two events of one row, the newer is open again.
	result := r.step(adopt.Back, adopt.None, true)
	need.That(t, result.Returned == 3, "moved %d, returned %d, refused %d", result.Moved, result.Returned, result.Refused)
	pgtest.Want(r, "1 12 3", "open rows %q", `select string_agg(payload ->> 'n', ' ' order by payload ->> 'n') from outbox.events where status = 'pending'`)
}

// The way back waits for what a dispatcher has leased, and takes it when the lease is over, also when no dispatcher runs.
func TestBackWaitsForLeases(t *testing.T) {
	r := newRig(t, m10Service())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for n := range 3 {
		r.produce(t.Context(), n)
	}
	r.exec(`update outbox.outbox_events set status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' in ('1', '2')`)
	if result, err := r.try(adopt.Back, adopt.Options{Wait: time.Millisecond}); err == nil || result.State != adopt.Returning || result.Returned != 1 || !strings.Contains(err.Error(), "run back again") {
		t.Errorf("state %q, returned %d: %v", result.State, result.Returned, err)
	}
	need.Fails(t, "finish that first", "a cut-over on the way back: %v", need.Err(r.try(adopt.Cutover, adopt.Options{})))
	r.produce(t.Context(), 3) // theirs again
	r.exec(`update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null where payload ->> 'n' = '1'`)
	r.exec(`update outbox.outbox_events set locked_until = now() - interval '1 second' where payload ->> 'n' = '2'`)
	r.step(adopt.Back, adopt.None, true)
	pgtest.Want(r, "0 0, 2 1, 3 0", "open rows %q", `select string_agg((payload ->> 'n') || ' ' || retry_count, ', ' order by id) from m10_recovery.outbox where processed_at is null`)
}

// A dry run changes nothing, and what it prints does the step.
func TestDryRunPrintsTheStep(t *testing.T) {
	r := newRig(t, storageService())
	r.produce(t.Context(), 1)
	sum := func() string {
		return pgtest.Value[string](r, `select concat_ws(' ', (select count(*) from pg_class), (select count(*) from pg_proc), (select count(*) from pg_trigger),
			(select count(*) from outbox.outbox_events), (select string_agg(s.*::text, ',') from storage_outbox as s))`)
	}
	states := map[adopt.Step]adopt.State{adopt.ToShadow: adopt.Shadow, adopt.Cutover: adopt.Live, adopt.Back: adopt.None}
	for _, step := range []adopt.Step{adopt.ToShadow, adopt.Cutover, adopt.Back} {
		before := sum()
		result, err := r.try(step, adopt.Options{DryRun: true})
		need.Must(t, err == nil && result.State == states[step] && result.Changed && len(result.SQL) != 0, "%s: %+v, %v", step, result, err)
		need.Want(t, before, "%s --dry-run changed\n%s to\n%s", sum(), step, before)
		r.exec(`begin; set local search_path = outbox; ` + strings.Join(result.SQL, ";\n") + `; commit`)
		if step != adopt.Back {
			s := r.status()
			need.That(t, s.State == states[step] && s.OK(), "%s as printed: %+v", step, s)
			continue
		}
		r.step(adopt.Back, adopt.None, false)
		pgtest.Want(r, 1, "%d rows are open", `select count(*) from storage_outbox where delivery_status = 'pending'`)
	}
}

// Errors name the object, the cause and the remedy.
func TestRefusedStepsNameTheRemedy(t *testing.T) {
	r := newRig(t, m10Service())
	conn, err := r.Acquire(t.Context())
	need.OK(t, err)
	defer conn.Release()
	refused := func(step adopt.Step, spec adopt.Spec, o adopt.Options, want string) {
		t.Helper()
		need.Fails(t, want, "%s of %+v: %v, want %q", need.Err(adopt.Apply(t.Context(), conn.Conn(), "outbox", step, spec, o)), step, spec)
	}
	shadow := func(change func(*adopt.Spec), want string) {
		t.Helper()
		spec := r.old.spec
		change(&spec)
		refused(adopt.ToShadow, spec, adopt.Options{}, want)
	}
	shadow(func(s *adopt.Spec) { s.Layout = "kafka" }, "choose modkit, m10, overview, storage, debezium or columns")
	shadow(func(s *adopt.Spec) { s.Namespace = "it's" }, "the namespace")
	shadow(func(s *adopt.Spec) { s.Topic = "" }, "no topic")
	shadow(func(s *adopt.Spec) { s.Name = "Orders" }, "lower-case character")
	shadow(func(s *adopt.Spec) { s.Table = "m10_recovery.none" }, "there is no table m10_recovery.none")
	shadow(func(s *adopt.Spec) { s.Table = "outbox.outbox_workers" }, "it lacks id, aggregate_type")
	shadow(func(s *adopt.Spec) { s.Columns = map[string]string{"id": "id"} }, "has its own columns")
	shadow(func(s *adopt.Spec) {
		s.Layout, s.Columns = adopt.Columns, map[string]string{"id": "id", "payload": "payload"}
	}, "needs one of completed, status and sent")
	shadow(func(s *adopt.Spec) {
		s.Layout, s.Columns = adopt.Columns, map[string]string{"id": "id", "payload": "payload", "status": "state"}
	}, "COLUMN:OPEN:COMPLETE")
	shadow(func(s *adopt.Spec) {
		s.Layout, s.Columns = adopt.Columns, map[string]string{"id": "id", "payload": "payload", "since": "x"}
	}, "unknown name \"since\"")
	r.exec(`create table public.flagged (id bigint primary key, body jsonb, sent boolean); create domain public.a_time as timestamptz;
		create table public.timed (id bigint primary key, body jsonb, sent public.a_time, at bigint, later timestamptz, made text generated always as (body ->> 'state') stored);
		insert into public.timed values (1, '{}', now(), 1, now() + interval '1 hour');
		create table public.kids (row bigint references public.timed deferrable initially deferred)`)
	flagged := func(table, name, column, want string) {
		t.Helper()
		shadow(func(s *adopt.Spec) {
			s.Layout, s.Table, s.Columns = adopt.Columns, table, map[string]string{"id": "id", "payload": "body", name: column}
			if name == "created" {
				s.Columns["completed"] = "sent"
			}
		}, want)
	}
	flagged("public.flagged", "completed", "sent", `the mapping does not fit table public.flagged: ERROR: column "sent" is of type boolean but expression is of type timestamp`)
	flagged("public.flagged", "status", "sent:false:done", `invalid input syntax for type boolean: "done" (SQLSTATE 22P02); correct --column and --open`)
	flagged("public.flagged", "status", "sent:false,null:true", `where more values are to be sent, or are not, the condition too: --open`)
	flagged("public.flagged", "created", "sent", `which does not grow from row to row`)
	flagged("public.timed", "created", "at", `cannot cast type bigint to timestamp with time zone`)
	flagged("public.timed", "created", "later", `is later than now in a row`)
	flagged("public.timed", "status", "made:a:b", `column "made" can only be updated to DEFAULT`)
	flagged("public.timed", "sent", "delete", `constraint kids_row_fkey of table public.timed may be checked at the end of a transaction`)
	shadow(func(s *adopt.Spec) { s.Table = "public.a$adopt$" }, "cannot be used as a table or a column")
	shadow(func(s *adopt.Spec) {
		s.Layout, s.Columns = adopt.Columns, map[string]string{"id": "a$adopt$", "payload": "payload", "completed": "c"}
	}, "cannot be used as a table or a column")
	refused(adopt.Cutover, adopt.Spec{}, adopt.Options{}, "begin with its shadow")
	for _, spec := range []adopt.Spec{
		{Table: "public.flagged", Columns: map[string]string{"id": "id", "payload": "body", "status": "sent:false:true"}},
		{Table: "public.timed", Columns: map[string]string{"id": "id", "payload": "body", "completed": "sent"}},
	} {
		spec.Layout, spec.Namespace, spec.Topic = adopt.Columns, "shop", "flags"
		need.Want(t, nil, "a shadow of %s by %v: %v", need.Err(adopt.Apply(t.Context(), conn.Conn(), "outbox", adopt.ToShadow, spec, adopt.Options{DryRun: true})), spec.Table, spec.Columns)
	}
	r.exec(`create role adopt_app; grant usage on schema m10_recovery, outbox to adopt_app`)
	t.Cleanup(func() { _, _ = r.Exec(context.Background(), `drop owned by adopt_app; drop role adopt_app`) })
	need.OK(t, need.Err(conn.Exec(t.Context(), `set role adopt_app`)))
	shadow(func(*adopt.Spec) {}, "the login adopt_app is not the owner of table m10_recovery.outbox")
	need.OK(t, need.Err(conn.Exec(t.Context(), `reset role`)))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	shadow(func(s *adopt.Spec) { s.Name = "other" }, "is adopted as m10")
	r.produce(t.Context(), 1)
	r.produce(t.Context(), 2)
	refused(adopt.Cutover, adopt.Spec{}, adopt.Options{MaxRows: 1}, "more than 1 rows")
	r.step(adopt.Cutover, adopt.Live, true)
	shadow(func(*adopt.Spec) {}, "is Live; go back first")
}

// A producer may add many rows in one transaction, each of which runs the trigger's block in a subtransaction. It logs what a
// row costs.
//
// CONTRACT: C-91
func TestManyRowsInOneTransaction(t *testing.T) {
	const rows = 5000
	r := newRig(t, overviewService())
	insert := func(what string) {
		began := time.Now()
		r.exec(`insert into outbox.events (id, topic, payload) select gen_random_uuid(), 'orders', '{"a": 1}' from generate_series(1, 5000)`)
		t.Logf("%s: %v a row", what, time.Since(began)/rows)
	}
	insert("without a trigger")
	r.step(adopt.ToShadow, adopt.Shadow, true)
	insert("in the shadow")
	s := r.status()
	need.That(t, s.Rows == rows && s.Notes == rows && s.Missing == 0, "in the shadow: %+v", s)
	began := time.Now()
	r.step(adopt.Cutover, adopt.Live, true)
	t.Logf("cutover: %v a row", time.Since(began)/(2*rows))
	insert("after the cutover")
	events, open := pgtest.Value[int](r, `select count(*) from `+pgtest.Schema+`.outbox_events`), pgtest.Value[int](r, `select count(*) from outbox.events where `+r.old.open)
	need.That(t, events == 3*rows && open == 0, "after the cutover: %d events, %d open rows of theirs; want %d and 0", events, open, 3*rows)
}

// keyedService is a table whose id has this type, and whose keys are these constraints.
func keyedService(idType, keys string) oldService {
	return oldService{
		spec: adopt.Spec{
			Name: "keyed", Layout: adopt.Columns, Table: "public.keyed", Namespace: "shop", Topic: "orders",
			Columns: map[string]string{"id": "id", "payload": "data", "created": "created", "status": "state:NEW:SENT"},
		},
		ddl: `create table keyed (id ` + idType + `, kind text not null default 'a', data jsonb not null default '{}', state text not null default 'NEW',
			created timestamptz not null default now()` + keys,
	}
}

// A row is known by its id: two rows of one id would become one event, and both would be marked as sent.
//
// CONTRACT: C-91
func TestShadowRefusesIDThatIsNotUnique(t *testing.T) {
	const notUnique, mayBeNull = "column id of table public.keyed is not unique by itself", `alter table "public"."keyed" alter column "id" set not null`
	for name, test := range map[string]struct{ idType, keys, want string }{
		"primary key":                  {"integer", `, primary key (id))`, ""},
		"unique index":                 {"text not null", `); create unique index on keyed (id)`, ""},
		"partitioned by the id":        {"bigint", `, primary key (id)) partition by hash (id); create table keyed_0 partition of keyed for values with (modulus 1, remainder 0)`, ""},
		"composite key":                {"integer", `, primary key (id, kind))`, notUnique},
		"index that is partial":        {"integer not null", `); create unique index on keyed (id) where kind = 'a'`, notUnique},
		"index of an expression":       {"text not null", `); create unique index on keyed (lower(id))`, notUnique},
		"constraint that is deferred":  {"integer not null", `, unique (id) deferrable)`, notUnique},
		"partitioned by the time":      {"bigint not null", `, primary key (id, created)) partition by range (created); create table keyed_0 partition of keyed default`, `run: create unique index concurrently on public.keyed_0 ("id")`},
		"an index that is not unique":  {"integer not null", `); create index on keyed (id)`, notUnique},
		"an id that may be null":       {"integer", `, unique (id))`, mayBeNull},
		"no index of the whole table":  {"bigint not null", `) partition by range (created); create table keyed_0 partition of keyed default; create unique index on keyed_0 (id)`, notUnique},
		"a row may share another's id": {"uuid not null", `)`, notUnique},
		"texts that differ as ids":     {"character(10)", `, primary key (id))`, "an id is an integer, a uuid or a text"},
		"rows of an heir":              {"integer", `, primary key (id)); create table heir (primary key (id)) inherits (keyed)`, "has tables that inherit from it"},
		"rows that are hidden":         {"integer", `, primary key (id)); alter table keyed enable row level security, force row level security`, "no force row level security"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService(test.idType, test.keys))
			_, err := r.try(adopt.ToShadow, adopt.Options{})
			need.That(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)), "got %v, want %q", err, test.want)
		})
	}
}
