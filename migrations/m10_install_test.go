package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// What is there already and is not ours is left alone, and names that cannot stand in a function are refused.
func TestM10InstallRefused(t *testing.T) {
	t.Parallel()
	refused := func(d database, schema string, m migrations.M10, want string) {
		t.Helper()
		if installed, err := migrations.UpM10(t.Context(), d.Conn, schema, m); err == nil || installed || !strings.Contains(err.Error(), want) {
			t.Errorf("installed is %v, %v, want %q", installed, err, want)
		}
	}
	d := withM10(t, m10)
	d.up("second")
	refused(d, "second", m10, "serves another schema of this database (The M10 outbox over schema outbox.")
	pgtest.Exec(d, `drop view m10_recovery.outbox`)
	d.upM10("second", m10, true)
	pgtest.Exec(d, `drop view m10_recovery.outbox; create view m10_recovery.outbox as select 1 as one`)
	refused(d, "second", m10, "dispatcher migrate up did not make it")
	pgtest.Exec(d, `drop view m10_recovery.outbox; create table m10_recovery.outbox (id bigserial primary key)`)
	refused(d, "second", m10, "alter table m10_recovery.outbox rename to outbox_before")
	page, err := os.ReadFile("m10/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```sql\nalter table m10_recovery.outbox")
	rename, setval, _ := strings.Cut("alter table m10_recovery.outbox"+script[:strings.Index(script, "```")], ";")
	pgtest.Exec(d, rename)
	for old, want := range map[int64]int64{0: 7, 6: 7, 20: 21} { // the next seq, where the outbox has given 6
		pgtest.Exec(d, `truncate m10_recovery.outbox_before`)
		pgtest.Exec(d, `insert into m10_recovery.outbox_before select $1::bigint where $1 > 0`, old)
		pgtest.Exec(d, `select setval('outbox.outbox_events_seq_seq', 6)`)
		pgtest.Exec(d, setval)
		if got := pgtest.Value[int64](d, `select nextval('outbox.outbox_events_seq_seq')`); got != want {
			t.Errorf("with their greatest id %d the next seq is %d, want %d", old, got, want)
		}
	}
	d.upM10("outbox", m10, true)
	for _, name := range []string{"", "it's", `a\b`, "$m10$", "a\nb", strings.Repeat("x", 256)} {
		refused(d, "outbox", migrations.M10{Namespace: name, Topic: "m10"}, "namespace")
		refused(d, "outbox", migrations.M10{Namespace: "shop", Topic: name}, "topic")
	}
	refused(d, "Outbox", m10, "schema")
	refused(newDatabase(t, pgtest.Empty(t)), "outbox", m10, "outbox_events")
}

// With other settings the functions are replaced, and roles keep what they may do.
func TestM10Reinstall(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	worker := d.as(migrations.M10Worker)
	worker.publish("42")
	d.upM10("outbox", migrations.M10{Namespace: `sh"op ä`, Topic: "of {topic}", Upsert: true}, true)
	if got := worker.claim("w", 10); got != "" {
		t.Errorf("claimed %q of another topic", got)
	}
	if first, second := worker.publish("42"), worker.publish("42"); first != second {
		t.Errorf("an upsert gave %d and %d", first, second)
	}
	if got := worker.claim("w", 10); got != "2 0" {
		t.Errorf("claimed %q", got)
	}
	if got := pgtest.Value[string](d, `select concat_ws(' / ', namespace, topic) from outbox.outbox_events where seq = 2`); got != `sh"op ä / of {topic}` {
		t.Errorf("the event is of %s", got)
	}
}

// A worker's login calls the functions and reads the view, and no more.
func TestGrantsM10(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	worker := d.as(migrations.M10Worker)
	// What a worker puts in the way of the tables' names is not used with the owner's rights.
	pgtest.Exec(worker, `create temporary table outbox_events (seq bigint, live boolean, status text, locked_by uuid)`)
	id := worker.publish("42")
	worker.claim("w", 1)
	worker.complete(id, "w", true)
	pgtest.Exec(worker, `select m10_recovery.acquire_lock('l', 'h'), m10_recovery.extend_lock('l', 'h'), m10_recovery.release_lock('l', 'h')`)
	if n := pgtest.Value[int](worker, `select count(processed_at) from m10_recovery.outbox`); n != 1 {
		t.Errorf("the worker sees %d processed events, want 1", n)
	}
	worker.wantRefused(
		`select * from outbox.outbox_events`,
		`select outbox.enqueue('shop', 'm10', '{}')`,
		`select * from m10_recovery.processors`,
		`delete from m10_recovery.distributed_locks`,
		`create table m10_recovery.mine ()`,
	)
	d.as(migrations.Dispatcher, migrations.Producer).wantRefused(`select m10_recovery.publish_outbox('a', 'b', 'c', '{}')`, `select * from m10_recovery.outbox`)
}
