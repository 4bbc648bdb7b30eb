package adopt_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// The way back of a table that was dropped removes what is kept of the adoption, and says what waits.
func TestBackOfDroppedTableRemovesAdoption(t *testing.T) {
	r := newRig(t, m10Service())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 0)
	r.produce(t.Context(), 1)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '0'`)

	r.exec(`alter table m10_recovery.outbox rename to old`)
	if _, err := r.try(adopt.Back, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "the table was renamed, with the trigger: name it back") {
		t.Errorf("of a table that was renamed: %v", err)
	}
	conn, err := r.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = adopt.Read(t.Context(), conn.Conn(), pgtest.Schema, "")
	conn.Release()
	if err == nil || !strings.Contains(err.Error(), "end the adoption if it was dropped: dispatcher adopt back --name m10") {
		t.Errorf("the status: %v", err)
	}

	r.exec(`drop table m10_recovery.old`)
	dry, err := r.try(adopt.Back, adopt.Options{DryRun: true})
	if err != nil || !dry.Changed || len(dry.SQL) != 3 {
		t.Errorf("a dry run %+v: %v", dry, err)
	}
	result := r.step(adopt.Back, adopt.None, true)
	if want := "Table m10_recovery.outbox was dropped, and what was kept of its adoption is removed. 1 events of it are not delivered yet: they stay in the outbox, and a dispatcher of namespace " + r.old.spec.Namespace + " delivers them."; result.Next != want {
		t.Errorf("says %q", result.Next)
	}
	kept := pgtest.Value[int](r, `select (select count(*) from outbox.outbox_adoptions) + (select count(*) from outbox.outbox_adopted) + (select count(*) from pg_proc where proname like 'outbox_adopt\_m10%')`)
	if waiting := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'pending'`); kept != 0 || waiting != 1 {
		t.Errorf("%d rows and functions are kept, %d events wait", kept, waiting)
	}
	r.step(adopt.Back, adopt.None, false)
}

// The service's clean-up deletes rows that are complete, and their events may not be delivered yet: they are still counted, and the
// way back says that they stay. A row with the id of a deleted one is another event.
//
// CONTRACT: C-91
func TestEventsOfDeletedRowsStay(t *testing.T) {
	r := newRig(t, overviewService())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for n := range 4 {
		r.produce(t.Context(), n)
	}
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '0'`)
	id := pgtest.Value[string](r, `select id::text from outbox.events where payload ->> 'n' = '1'`)
	r.exec(`delete from outbox.events where payload ->> 'n' in ('0', '1')`)
	if s := r.status(); !s.OK() || s.Theirs != 2 || s.OursWaiting != 3 {
		t.Errorf("after the clean-up: %+v", s)
	}
	r.exec(`insert into outbox.events (id, topic, payload) values ('` + id + `', 'T', '{"n": 5}')`)
	if s := r.status(); !s.OK() || s.Theirs != 3 || s.OursWaiting != 4 || r.numbers() != "0 1 2 3 5" {
		t.Errorf("after a row of the same id: %+v, events %s", s, r.numbers())
	}
	result := r.step(adopt.Back, adopt.None, true)
	if want := "1 events stay in the outbox, because their rows were deleted: let a dispatcher run until they are delivered."; result.Returned != 3 || !strings.HasSuffix(result.Next, want) {
		t.Errorf("returned %d, and says %q", result.Returned, result.Next)
	}
	if got := pgtest.Value[string](r, `select string_agg(payload ->> 'n', ' ' order by payload ->> 'n') from outbox.events where status = 'pending'`); got != "2 3 5" || r.numbers() != "0 1" {
		t.Errorf("open rows %s, and events %s", got, r.numbers())
	}
}

// The note of a deleted row goes when its event is delivered.
func TestNotesOfDeletedRowsArePruned(t *testing.T) {
	r := newRig(t, overviewService())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for range 2 {
		r.exec(`update outbox.outbox_events set status = 'delivered'`)
		r.exec(`insert into outbox.events (id, topic, payload) select gen_random_uuid(), 'T', jsonb_build_object('n', n) from generate_series(1, 40) as n`)
		r.exec(`delete from outbox.events`)
		if s := r.status(); !s.OK() || s.Theirs != 0 || s.OursWaiting != 40 {
			t.Errorf("status %+v", s)
		}
		if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_adopted`); n != 40 {
			t.Errorf("%d notes, want those of the 40 events that wait", n)
		}
	}
}

// Where an index of theirs lets one row of an aggregate be open, the newest event is what their worker gets: an older one waits
// while a dispatcher has a newer one, and a row that a producer has added meanwhile replaces both.
//
// CONTRACT: C-91
func TestBackReturnsTheNewestOfAnAggregate(t *testing.T) {
	r := newRig(t, m10Upsert())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for _, n := range []int{1, 2, 201, 202, 3} { // of the aggregates 1, 2, 1, 2 and 3
		r.produce(t.Context(), n)
	}
	r.exec(`update outbox.outbox_events set status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' in ('201', '202')`)
	if result, err := r.try(adopt.Back, adopt.Options{Wait: time.Millisecond}); err == nil || result.State != adopt.Returning || result.Returned != 1 {
		t.Errorf("state %q, returned %d: %v", result.State, result.Returned, err)
	}
	r.produce(t.Context(), 402) // theirs again
	r.exec(`update outbox.outbox_events set status = 'pending', locked_by = null, locked_until = null where status = 'processing'`)
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 1 {
		t.Errorf("returned %d", result.Returned)
	}
	if got := pgtest.Value[string](r, `select string_agg(payload ->> 'n', ', ' order by id) from m10_recovery.outbox where processed_at is null`); got != "201, 3, 402" {
		t.Errorf("open rows %q, want the newest of each aggregate", got)
	}
}

// A trigger of theirs that keeps a row from being opened, or from being inserted again, keeps its event in the outbox.
//
// CONTRACT: C-91
func TestBackRefusesRowsThatATriggerKeepsClosed(t *testing.T) {
	for name, test := range map[string]struct{ mark, body, want string }{
		"unchanged": {"status=state:NEW:SENT", "before update on keyed for each row when (old.state = 'SENT') execute function keep_old()", `table "public"."keyed" keeps row 1 closed`},
		"left out":  {"status=state:NEW:SENT", "before update on keyed for each row when (old.state = 'SENT') execute function leave_out()", `table "public"."keyed" keeps row 1 closed`},
		"not added": {"sent=delete", "before insert on keyed for each row execute function leave_out()", `table "public"."keyed" keeps row 1 out`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id));
				create function keep_old() returns trigger language plpgsql as 'begin return old; end';
				create function leave_out() returns trigger language plpgsql as 'begin return null; end'`))
			delete(r.old.spec.Columns, "status")
			column, value, _ := strings.Cut(test.mark, "=")
			r.old.spec.Columns[column] = value
			r.step(adopt.ToShadow, adopt.Shadow, true)
			r.step(adopt.Cutover, adopt.Live, true)
			r.exec(`insert into keyed (id) values (1)`)
			r.exec(`create trigger kept ` + test.body)
			if _, err := r.try(adopt.Back, adopt.Options{}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if s := r.status(); s.State != adopt.Live || s.OursWaiting != 1 {
				t.Errorf("status %+v, want the event", s)
			}
			r.exec(`drop trigger kept on keyed`)
			if back := r.step(adopt.Back, adopt.None, true); back.Returned != 1 || pgtest.Value[int](r, `select count(*) from keyed where state = 'NEW'`) != 1 {
				t.Errorf("returned %d", back.Returned)
			}
		})
	}
}

// Where their worker deletes what it has sent, an id may have several events, and so may a value of which a unique index lets one
// be there: the newest one goes back, also when a dispatcher has an older one for longer, and a row that a producer has added
// meanwhile replaces them.
//
// CONTRACT: C-91
func TestBackReturnsTheNewestOfAnID(t *testing.T) {
	r := newRig(t, keyedService("text", `, primary key (id)); create unique index on keyed (kind) where kind <> 'a'`))
	delete(r.old.spec.Columns, "status")
	r.old.spec.Columns["sent"] = "delete"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for n, id := range []string{"a", "b", "c", "a", "b", "c"} {
		r.exec(`insert into keyed (id, data) values ($1, jsonb_build_object('n', $2::integer))`, id, n)
	}
	for _, row := range []string{`('d', 'k', '{"n": 7}')`, `('e', 'k', '{"n": 8}')`} {
		r.exec(`insert into keyed (id, kind, data) values ` + row)
	}
	r.exec(`update outbox.outbox_events set status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' in ('0', '1', '4')`)
	if result, err := r.try(adopt.Back, adopt.Options{Wait: time.Millisecond}); err == nil || result.State != adopt.Returning || result.Returned != 2 {
		t.Errorf("state %q, returned %d: %v", result.State, result.Returned, err)
	}
	r.exec(`insert into keyed (id, data) values ('a', '{"n": 6}')`) // theirs again
	r.exec(`update outbox.outbox_events set status = 'pending', locked_by = null, locked_until = null where status = 'processing'`)
	r.step(adopt.Back, adopt.None, true)
	if got := pgtest.Value[string](r, `select string_agg(id || ' ' || (data ->> 'n'), ', ' order by id) from keyed`); got != "a 6, b 4, c 5, e 8" {
		t.Errorf("rows %q, want the newest of each id and of a kind", got)
	}
}

// A way back that ends after its first transaction leaves no trigger: no cut-over begins from that, and the next way back ends
// it, however long that takes. So does one of a table that was dropped.
//
// CONTRACT: C-91
func TestBackThatEndedHalfWay(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table limits (step text);
		create function note() returns trigger language plpgsql as 'begin insert into public.limits values (current_setting(''statement_timeout'')); return null; end'`))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`insert into keyed (id) values (1); create trigger noted before delete on outbox.outbox_adopted for each statement execute function note()`)
	holder, err := r.Begin(t.Context())
	if err == nil {
		_, err = holder.Exec(t.Context(), `lock table outbox.outbox_adopted in share mode`)
	}
	if err != nil {
		t.Fatal(err)
	}
	back := func(ctx context.Context) error {
		conn, err := r.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, `set statement_timeout = '1min'`); err != nil {
			return err
		}
		_, err = adopt.Apply(ctx, conn.Conn(), pgtest.Schema, adopt.Back, adopt.Spec{}, adopt.Options{})
		return err
	}
	ctx, crash := context.WithCancel(t.Context())
	defer crash()
	done := make(chan error, 1)
	go func() { done <- back(ctx) }()
	r.eventually("the notes are to be removed", func() bool {
		return len(done) > 0 || pgtest.Value[bool](r, `select exists (select from pg_locks where not granted and relation = 'outbox.outbox_adopted'::regclass)`)
	})
	crash()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "table public.keyed has gone back, and what is kept of adoption keyed was not removed") {
		t.Errorf("got %v", err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into keyed (id) values (2)`)
	if _, err := r.try(adopt.Cutover, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "is on its way back; finish that first") {
		t.Errorf("a cut-over without the shadow's trigger: %v", err)
	}
	if err := back(t.Context()); err != nil {
		t.Error(err)
	}
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`drop table keyed`)
	if err := back(t.Context()); err != nil {
		t.Error(err)
	}
	r.step(adopt.Back, adopt.None, false)
	if got := pgtest.Value[string](r, `select string_agg(step, ' ') from limits`); got != "0 10s 0" {
		t.Errorf("the notes are removed with the limits %s; want none but that of the shadow", got)
	}
}

// The way back has the rows that it inserts again in memory one at a time.
func TestBackHoldsOneRowAtATime(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table memory (bytes bigint);
		create function note() returns trigger language plpgsql as 'begin insert into public.memory select sum(total_bytes) from pg_backend_memory_contexts; return null; end'`))
	delete(r.old.spec.Columns, "status")
	r.old.spec.Columns["sent"] = "delete"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.exec(`insert into keyed (id, data) select n, jsonb_build_object('text', (select string_agg(md5(n || ' ' || i), '') from generate_series(1, 16000) as i)) from generate_series(1, 12) as n`)
	r.exec(`create trigger noted after insert on keyed for each row execute function note()`)
	if back := r.step(adopt.Back, adopt.None, true); back.Returned != 12 {
		t.Errorf("returned %d", back.Returned)
	}
	if most := pgtest.Value[int64](r, `select max(bytes) from memory`); most > 15_000_000 {
		t.Errorf("it had %d bytes in memory for 12 rows of 512,000", most)
	}
}
