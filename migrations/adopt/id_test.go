package adopt_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

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
		"partitioned by the time":      {"bigint not null", `, primary key (id, created)) partition by range (created); create table keyed_0 partition of keyed default`, notUnique},
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
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// What makes an id unique may go during the shadow.
func TestCutoverRefusesIDThatIsNotUniqueAnyMore(t *testing.T) {
	r := newRig(t, keyedService("integer not null", `); create unique index keyed_id on keyed (id)`))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`drop index keyed_id; insert into keyed (id) values (1), (1), (2)`)
	if s := r.status(); s.OK() || s.Theirs != 3 || s.Ours != 2 {
		t.Errorf("status %+v, want 3 of theirs and 2 of ours, which is not OK", s)
	}
	if _, err := r.try(adopt.Cutover, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "is not unique by itself") {
		t.Errorf("got %v", err)
	}
	if n := pgtest.Value[int](r, `select count(*) from keyed where state = 'NEW'`); n != 3 {
		t.Errorf("%d of 3 rows are open in their table", n)
	}
}

// An index may be broken, and two rows have one id.
func TestCutoverUndoesItselfWhenTwoRowsBecomeOneEvent(t *testing.T) {
	r := newRig(t, keyedService("integer not null", `); create index keyed_id on keyed (id)`))
	r.exec(`update pg_index set indisunique = true where indexrelid = 'keyed_id'::regclass`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`insert into keyed (id) values (2)`)
	r.exec(`update pg_index set indisunique = false where indexrelid = 'keyed_id'::regclass; insert into keyed (id, kind) values (1, 'a'), (1, 'b');
		update pg_index set indisunique = true where indexrelid = 'keyed_id'::regclass`)
	r.Reset()
	if _, err := r.try(adopt.Cutover, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "so nothing was changed") {
		t.Errorf("got %v", err)
	}
	if s := r.status(); s.State != adopt.Shadow || s.TheirsWaiting != 3 || s.OursWaiting != 0 {
		t.Errorf("status %+v, want the shadow with 3 rows that wait", s)
	}
}

// What a trigger or a rule of theirs keeps open would be sent by both sides.
func TestRowThatStaysOpenIsRefused(t *testing.T) {
	for name, ddl := range map[string]string{
		"trigger that returns null": `create function keep() returns trigger language plpgsql as 'begin return null; end'; create trigger keep before update on keyed for each row execute function keep()`,
		"trigger that undoes it":    `create function keep() returns trigger language plpgsql as 'begin new.state := ''NEW''; return new; end'; create trigger keep before update on keyed for each row execute function keep()`,
		"rule":                      `create rule keep as on update to keyed do instead nothing`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id)); `+ddl))
			r.exec(`insert into keyed (id) values (1)`)
			r.step(adopt.ToShadow, adopt.Shadow, true)
			if moved := r.step(adopt.Cutover, adopt.Live, true); moved.Moved != 0 || moved.Refused != 1 {
				t.Errorf("%+v, want a row that is refused", moved)
			}
			r.exec(`insert into keyed (id) values (2)`)
			if s := r.status(); s.OK() || s.Refused != 2 || s.TheirsWaiting != 2 || s.OursWaiting != 0 {
				t.Errorf("status %+v, want both rows refused, and open in their table", s)
			}
		})
	}
}

// A row that can be neither added nor noted stays open in their table, and is missing.
func TestProducerGetsNoErrorOfTheTrigger(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	for range 2 { // in the shadow, and live
		r.exec(`alter table outbox.outbox_adopted add constraint full_disk check (refused is null and their_id <> '7') not valid`)
		r.exec(`insert into keyed (id) values (7)`)
		r.exec(`alter table outbox.outbox_adopted drop constraint full_disk`)
		if s := r.status(); s.OK() || s.Missing != 1 || s.TheirsWaiting != 1 {
			t.Errorf("status %+v, want one row that is missing and open", s)
		}
		r.exec(`delete from keyed`)
		if s := r.status(); s.State == adopt.Shadow {
			r.step(adopt.Cutover, adopt.Live, true)
		}
	}
}

// A time of creation in UTC, in a column without a time zone, is hours in the future for a server west of it.
func TestRowWithoutDueTimeIsDueAtOnce(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id)); alter table keyed alter column created type timestamp`))
	r.exec(`insert into keyed (id, created) select n, now() at time zone 'UTC' + interval '5 hours' - n * interval '1 minute' from generate_series(1, 3) as n`)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.exec(`insert into keyed (id, created) values (4, now() at time zone 'UTC' + interval '5 hours')`)
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where next_attempt_at <= now()`); n != 4 {
		t.Errorf("%d of 4 events are due", n)
	}
	if s := r.status(); len(s.Warnings) != 2 || !strings.HasPrefix(s.Warnings[0], "column created has no time zone") ||
		!strings.HasPrefix(s.Warnings[1], "1 new rows have a time in column created that is up to 05:00:00 from the database's: it has no time zone") {
		t.Errorf("warnings %q, want the column and the hours", s.Warnings)
	}
	if order := pgtest.Value[string](r, `select string_agg(a.their_id, ' ' order by e.next_attempt_at, e.seq) from outbox.outbox_events as e join outbox.outbox_adopted as a on a.event_id = e.id`); order != "3 2 1 4" {
		t.Errorf("the events are due in the order %s, want that of their creation", order)
	}
}
