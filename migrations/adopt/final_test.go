package adopt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// A row is read as its transaction commits it, whatever happened to it before; random_test.go has more of that.
//
// CONTRACT: C-91
func TestRowIsReadWhenItIsFinal(t *testing.T) {
	for name, test := range map[string]struct{ sql, want string }{
		"updated":                  {`update keyed set kind = 'b', data = '{"n": 2}', state = 'NEW' where id = 1`, "b 2"},
		"deleted":                  {`delete from keyed where id = 1`, ""},
		"deleted and made again":   {`delete from keyed where id = 1; insert into keyed (id, data) values (1, '{"n": 3}')`, "a 3"},
		"another id":               {`update keyed set id = 2 where id = 1`, "a 1"},
		"not to be sent any more":  {`update keyed set state = null where id = 1`, ""},
		"a child row refers to it": {`insert into kids values (1)`, "a 1"},
		"rolled back to before":    {`rollback to a`, ""},
		"made again later":         {`commit; begin; delete from keyed where id = 1; insert into keyed (id, data) values (1, '{"n": 1}')`, "a 1, a 1"},
		"opened as another later":  {`commit; begin; update keyed set kind = 'b', state = 'NEW' where id = 1`, "a 1, b 1"},
		"opened again later":       {`commit; begin; update keyed set state = 'NEW' where id = 1`, "a 1"},
		"a trigger opens it again": {`insert into keyed (id, state, data) values (2, 'DRAFT', '{"n": 4}'); update keyed set state = 'NEW' where id = 2`, "a 1, a 4"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id)); alter table keyed alter state drop not null; create table kids (id integer references keyed)`))
			r.old.spec.Columns["type"], r.old.spec.Open = "kind", "r.state = 'NEW'"
			r.step(adopt.ToShadow, adopt.Shadow, true)
			r.step(adopt.Cutover, adopt.Live, true)
			r.exec(`begin; savepoint a; insert into keyed (id, data) values (1, '{"n": 1}'); ` + test.sql + `; commit`)
			pgtest.Want[string](r, test.want, "events %q, want %q", `select coalesce(string_agg(concat_ws(' ', event_type, payload ->> 'n'), ', ' order by seq), '') from outbox.outbox_events`)
			s := r.status()
			need.That(t, s.OK(), "%+v", s)
			back := r.step(adopt.Back, adopt.None, true)
			open := pgtest.Value[int64](r, `select count(*) from keyed where state = 'NEW'`)
			need.That(t, back.Returned == open && pgtest.Value[int](r, `select count(*) from outbox.outbox_events`) == 0, "%d rows went back, and %d are open", back.Returned, open)
		})
	}
}

// What fails for a row alone is noted, and what only the whole transaction can repeat is its producer's to repeat.
//
// CONTRACT: C-91
func TestProducerGetsWhatItCanRepeatAlone(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table kids (id integer references keyed)`))
	delete(r.old.spec.Columns, "status")
	r.old.spec.Columns["sent"] = "delete"
	fail := func(table, code string) {
		r.exec(fmt.Sprintf(`create or replace function fail() returns trigger language plpgsql as $$ begin raise sqlstate '%s'; end $$;
			create or replace trigger fail before insert on outbox.%s for each row execute function fail()`, code, table))
	}
	for _, step := range []adopt.Step{adopt.ToShadow, adopt.Cutover} {
		r.step(step, map[adopt.Step]adopt.State{adopt.ToShadow: adopt.Shadow, adopt.Cutover: adopt.Live}[step], true)
		for code, want := range map[string]string{"40001": "40001", "40P01": "40P01", "23505": "", "55P03": "", "P0001": ""} {
			fail("outbox_events", code)
			_, err := r.Exec(t.Context(), `insert into keyed (id) values (7)`)
			need.That(t, (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want)), "%s, and an event cannot be added for %s: a producer got %v", step, code, err)
			r.exec(`delete from keyed`)
		}
		fail("outbox_events", "P0001")
		fail("outbox_adopted", "P0002") // it can be neither added nor noted
		r.exec(`insert into keyed (id) values (8)`)
		r.exec(`drop trigger fail on outbox.outbox_events; drop trigger fail on outbox.outbox_adopted`)
		s := r.status()
		need.That(t, !s.OK() && s.Missing == 1 && s.OpenRows == 1 && s.Refused == 0, "status %+v, want one row that is missing and open", s)
		r.exec(`delete from keyed`)
	}
	r.exec(`begin; insert into keyed (id) values (9); insert into kids values (9); commit`) // which the row cannot be deleted with
	s := r.status()
	need.That(t, !s.OK() && s.Refused == 1 && s.OpenEvents == 0, "status %+v, want the row to be refused", s)
	pgtest.Want(r, "orders: missing 0, orders: refused 1, orders: waiting 1", "%s", `select string_agg(format('orders: %s %s', state, count), ', ' order by state) from outbox.outbox_adoption_rows()`)
	for namespace, want := range map[string]int{r.old.spec.Namespace: 3, "another": 0} {
		data, err := pgstore.New(r.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: namespace}).Data(t.Context(), pgstore.WorkerInfo{})
		need.That(t, err == nil && len(data.Adoptions) == want, "a dispatcher of namespace %s sees %+v, %v, want %d counts", namespace, data.Adoptions, err, want)
	}
	r.exec(`truncate keyed, kids; alter table keyed rename to old`)
	pgtest.Want(r, 1, "%d: the counts are not of the last five minutes", `select count from outbox.outbox_adoption_rows() where state = 'waiting'`)
	r.exec(`update outbox.outbox_adoptions set look_after = now()`)
	pgtest.Want(r, -1, "%d: a table that cannot be counted has counts", `select count from outbox.outbox_adoption_rows() where state = 'waiting'`)
}

// Whatever becomes of a column that is mapped, no producer gets an error, and what is not delivered goes back as far as it can.
//
// CONTRACT: C-91
func TestColumnsMayGo(t *testing.T) {
	for _, state := range []adopt.State{adopt.Shadow, adopt.Live} {
		for _, column := range []string{"id", "kind", "data", "state", "created", "due", "tries"} {
			t.Run(fmt.Sprint(state, " ", column), func(t *testing.T) {
				r := newRig(t, keyedService("serial", `, due timestamptz, tries integer default 0, primary key (id))`))
				for ours, theirs := range map[string]string{"type": "kind", "due": "due", "attempts": "tries"} {
					r.old.spec.Columns[ours] = theirs
				}
				r.step(adopt.ToShadow, adopt.Shadow, true)
				if state == adopt.Live {
					r.step(adopt.Cutover, adopt.Live, true)
				}
				for _, sql := range []string{"insert into keyed default values", "alter table keyed rename " + column + " to other", "insert into keyed default values",
					"alter table keyed drop other cascade", "insert into keyed default values"} {
					r.exec(sql)
				}
				back, err := r.try(adopt.Back, adopt.Options{})
				if column == "id" || column == "state" {
					need.Fails(t, "it lacks "+column, "back: %v", err)
					return
				}
				need.That(t, err == nil && back.State == adopt.None && back.Returned == map[adopt.State]int64{adopt.Live: 1}[state], "back: %+v, %v", back, err)
				pgtest.Want(r, 3, "%d rows are open", `select count(*) from keyed where state = 'NEW'`)
			})
		}
	}
}

// A cut-over that refuses what the shadow had no chance to see is undone, and names the rows; the next one knows them.
//
// CONTRACT: C-91
func TestCutoverThatRefusesMoreThanItsShadowIsUndone(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); create table audit (id integer);
		create function note() returns trigger language plpgsql as 'begin insert into audit values (new.id); return new; end';
		create trigger changed after update on keyed for each row when (new.kind <> 'a') execute function note()`))
	r.exec(`insert into keyed (id, kind) values (1, 'b')`)
	r.exec(`insert into keyed (id, kind) values (2, 'a')`)
	first := r.step(adopt.ToShadow, adopt.Shadow, true)
	need.That(t, len(first.Warnings) == 0, "the newest row would be moved, and the shadow warns of %q", first.Warnings)
	r.exec(`insert into keyed (id, kind) values (3, 'c')`) // it has no path to the table audit either
	s := r.status()
	need.That(t, s.Refused == 1 && strings.Contains(s.Refusals[0].Reason, `relation "audit" does not exist`), "the shadow's status %+v, want the row to be refused", s)
	result, err := r.try(adopt.Cutover, adopt.Options{})
	need.Fails(t, `does not take 1 open rows of table public.keyed that the shadow has not seen, so nothing was moved; row 1: relation "audit" does not exist`, "got %v", err)
	need.That(t, result.State == adopt.Shadow && pgtest.Value[int](r, `select count(*) from outbox.outbox_events`) == 0, "%+v", result)
	s = r.status()
	need.That(t, s.State == adopt.Shadow && s.Refused == 2 && s.OpenRows == 3, "status %+v, want the shadow", s)
	result = r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, result.Moved == 1 && result.Refused == 2, "%+v, want those refused that it had named", result)
	r.exec(`alter function note() set search_path = public, pg_temp`)
	result = r.step(adopt.Cutover, adopt.Live, true)
	s = r.status()
	need.That(t, result.Moved == 2 && result.Refused == 0 && s.OK(), "%+v, %+v; want both rows moved", result, s)
}

// What a trigger or a rule of theirs keeps open would be sent by both sides. The shadow tries the newest open row too.
func TestRowThatStaysOpenIsRefused(t *testing.T) {
	for name, ddl := range map[string]string{
		"trigger that returns null": `create function keep() returns trigger language plpgsql as 'begin return null; end'; create trigger keep before update on keyed for each row execute function keep()`,
		"trigger that undoes it":    `create function keep() returns trigger language plpgsql as 'begin new.state := ''NEW''; return new; end'; create trigger keep before update on keyed for each row execute function keep()`,
		"rule":                      `create rule keep as on update to keyed do instead nothing`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id)); `+ddl))
			r.exec(`insert into keyed (id) values (1)`)
			shadow := r.step(adopt.ToShadow, adopt.Shadow, true)
			need.That(t, len(shadow.Warnings) == 1 && strings.HasPrefix(shadow.Warnings[0], "the newest open row, 1, would be refused: the row is still to be sent when it is marked"), "warnings %q", shadow.Warnings)
			moved := r.step(adopt.Cutover, adopt.Live, true)
			need.That(t, moved.Moved == 0 && moved.Refused == 1, "%+v, want a row that is refused", moved)
			r.exec(`insert into keyed (id) values (2)`)
			s := r.status()
			need.That(t, !s.OK() && s.Refused == 2 && s.OpenRows == 2 && s.OpenEvents == 0, "status %+v, want both rows refused, and open in their table", s)
		})
	}
}

// An event whose row does not go back stays in the outbox, is counted and named, and keeps no other.
//
// CONTRACT: C-91
func TestEventWhoseRowDoesNotGoBackStays(t *testing.T) {
	for name, test := range map[string]struct{ mark, after, want string }{
		"unchanged":      {"status=state:NEW:SENT", "create trigger kept before update on keyed for each row when (old.id = 1) execute function keep_old()", `keeps row 1 closed`},
		"left out":       {"status=state:NEW:SENT", "create trigger kept before update on keyed for each row when (old.id = 1) execute function leave_out()", `keeps row 1 closed`},
		"not added":      {"sent=delete", "create trigger kept before insert on keyed for each row when (new.id = 1) execute function leave_out()", `keeps row 1 out`},
		"parent gone":    {"sent=delete", "delete from parents where id = 1", `violates foreign key constraint`},
		"checked at end": {"sent=delete", "alter table keyed alter constraint keyed_parent_fkey deferrable initially deferred; delete from parents where id = 1", `violates foreign key constraint`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id)); create table parents (id integer primary key); alter table keyed add parent integer references parents;
				insert into parents values (1), (2);
				create function keep_old() returns trigger language plpgsql as 'begin return old; end';
				create function leave_out() returns trigger language plpgsql as 'begin return null; end'`))
			delete(r.old.spec.Columns, "status")
			column, value, _ := strings.Cut(test.mark, "=")
			r.old.spec.Columns[column] = value
			r.step(adopt.ToShadow, adopt.Shadow, true)
			r.step(adopt.Cutover, adopt.Live, true)
			r.exec(`insert into keyed (id, parent) values (1, 1), (2, 2)`)
			r.exec(test.after)
			back := r.step(adopt.Back, adopt.None, true)
			need.That(t, back.Returned == 1 && len(back.Warnings) == 1 && strings.Contains(back.Warnings[0], test.want) && strings.Contains(back.Next, "1 events stay in the outbox"),
				"%+v, want row 2 returned, and the event of row 1 named", back)
			pgtest.Want(r, "2", "open rows %s", `select string_agg(id::text, ' ') from keyed where state = 'NEW'`)
			pgtest.Want(r, 1, "%d events stay", `select count(*) from outbox.outbox_events where live`)
		})
	}
}

// The partitions of a table whose id is not unique by itself are adopted each by itself; the remedy of the refusal is one that works.
func TestPartitionsAreAdopted(t *testing.T) {
	r := newRig(t, keyedService("bigint not null", `, primary key (id, created)) partition by range (created); create table keyed_all partition of keyed default`))
	_, remedy, _ := strings.Cut(need.Err(r.try(adopt.ToShadow, adopt.Options{})).Error(), "run: ")
	_, err := r.Exec(t.Context(), remedy, pgx.QueryExecModeSimpleProtocol)
	need.OK(t, err)
	r.old.spec.Table = "public.keyed_all"
	r.exec(`insert into keyed (id) values (1)`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.exec(`begin; insert into keyed (id) values (2); update keyed set data = '{"n": 2}' where id = 2; commit`)
	pgtest.Want(r, 2, "%d events", `select count(*) from outbox.outbox_events where payload in ('{}', '{"n": 2}')`)
	back := r.step(adopt.Back, adopt.None, true)
	need.Want(t, 2, "returned %d", back.Returned)
}

// A time of creation in UTC, in a column without a time zone, is hours in the future for a server west of it.
func TestRowWithoutDueTimeIsDueAtOnce(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); alter table keyed alter column created type timestamp;
		do $$ begin execute format('alter database %I set timezone = ''America/New_York''', current_database()); end $$`))
	r.Reset()
	r.exec(`insert into keyed (id, created) select n, now() at time zone 'UTC' - n * interval '1 minute' from generate_series(1, 3) as n`)
	shadow := r.step(adopt.ToShadow, adopt.Shadow, true)
	need.That(t, len(shadow.Warnings) == 1 && strings.HasPrefix(shadow.Warnings[0], "column created has no time zone"), "warnings %q", shadow.Warnings)
	r.step(adopt.Cutover, adopt.Live, true)
	r.exec(`insert into keyed (id, created) values (4, now() at time zone 'UTC')`)
	pgtest.Want(r, 4, "%d of 4 events are due", `select count(*) from outbox.outbox_events where next_attempt_at <= now()`)
	pgtest.Want(r, "3 2 1 4", "the events are due in the order %s, want that of their creation", `select string_agg(a.their_id, ' ' order by e.next_attempt_at, e.seq) from outbox.outbox_events as e join outbox.outbox_adopted as a on a.event_id = e.id`)
}
