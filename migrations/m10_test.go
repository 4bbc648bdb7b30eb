package migrations_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

var m10 = migrations.M10{Namespace: "shop", Topic: "m10"}

// withM10 is an outbox with the functions of M10.
func withM10(t *testing.T, m migrations.M10) database {
	t.Helper()
	d := newDatabase(t, pgtest.Migrated(t))
	d.upM10("outbox", m, true)
	return d
}

func (d database) upM10(schema string, m migrations.M10, want bool) {
	d.Helper()
	installed, err := migrations.UpM10(d.Context(), d.Conn, schema, m)
	need.Must(d, err == nil && installed == want, "installed is %v, %v, want %v", installed, err, want)
}

// publish adds an event by M10's function, of the type and payload that deployed workers have.
func (d database) publish(aggregate string) (id int64) {
	d.Helper()
	return pgtest.Value[int64](d, `select m10_recovery.publish_outbox('order', $1, 'http:call', '{"url": "https://example.com"}')`, aggregate)
}

// claim returns "id retries, id retries, …".
func (d database) claim(worker string, batch int) string {
	d.Helper()
	return pgtest.Value[string](d, `select coalesce(string_agg(id || ' ' || retry_count, ', '), '') from m10_recovery.claim_outbox_events($1, $2)`, worker, batch)
}

func (d database) complete(id int64, worker string, success bool) {
	d.Helper()
	pgtest.Exec(d, `select m10_recovery.complete_outbox_event($1, $2, $3, $4)`, id, worker, success, "refused")
}

// Each function has the contract's arguments, in its order, with its names, types, defaults and result, and no other
// signature, also when the owner has made one.
// CONTRACT: C-90
// REQUIREMENT: M10-1, M10-2, M10-3, M10-16, M10-17
func TestM10SignaturesAreTheContracts(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	want := map[string]string{
		"claim_outbox_events":   "p_processor_id text, p_batch_size integer DEFAULT 10 -> TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)",
		"complete_outbox_event": "p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text -> void",
		"publish_outbox":        "p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb -> bigint",
		"acquire_lock":          "p_lock_name text, p_holder_id text, p_ttl_seconds integer DEFAULT 600 -> boolean",
		"extend_lock":           "p_lock_name text, p_holder_id text, p_ttl_seconds integer DEFAULT 600 -> boolean",
		"release_lock":          "p_lock_name text, p_holder_id text -> boolean",
	}
	check := func() {
		t.Helper()
		for name, signature := range want {
			if n := pgtest.Value[int](d, `select count(*) from pg_proc where pronamespace = 'm10_recovery'::regnamespace and proname = $1`, name); n != 1 {
				t.Errorf("%s has %d signatures, want 1", name, n)
				continue
			}
			need.Want(t, signature, "%s is\n%s, want\n%s", pgtest.Value[string](d, `select pg_get_function_arguments(oid) || ' -> ' || pg_get_function_result(oid) from pg_proc
				where pronamespace = 'm10_recovery'::regnamespace and proname = $1`, name), name)
		}
		pgtest.Want[int](d, len(want), "%d functions, want %d", `select count(*) from pg_proc where pronamespace = 'm10_recovery'::regnamespace and prorettype <> 'trigger'::regtype`)
	}
	check()
	// The order that the contract forbids, and a second signature of publish.
	pgtest.Exec(d, `create function m10_recovery.claim_outbox_events(p_batch_size integer, p_processor_name text) returns setof bigint language sql as 'select 1::bigint'`)
	pgtest.Exec(d, `create function m10_recovery.publish_outbox(text, uuid, text, jsonb) returns uuid language sql as 'select $2'`)
	d.upM10("outbox", m10, true)
	check()
	d.upM10("outbox", m10, false)
}

// A worker takes what is not processed, due, and not held for the last five minutes.
// CONTRACT: C-90
// REQUIREMENT: M10-4, M10-7, M10-8, M10-9, M10-11
func TestM10SelectionRule(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	for i := range 7 {
		d.publish(fmt.Sprint(i + 1)) // ids 1 to 7
	}
	set := func(id int, changes string) {
		t.Helper()
		pgtest.Exec(d, fmt.Sprintf(`update outbox.outbox_events set %s where seq = %d`, changes, id))
	}
	held := func(until string) string {
		return "status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '" + until + "'"
	}
	set(1, "status = 'delivered'")
	set(2, "next_attempt_at = now() + interval '1 second'")
	set(4, held("-1 microsecond"))
	set(5, "status = 'dead', dead_reason = 'poison_message'")
	set(7, held("1 hour")+", updated_at = now() + interval '2 minutes'") // by a clock that was ahead
	pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', 'other', '{}'), (gen_random_uuid(), 'other', 'm10', '{}')`)

	// In one transaction, whose now() the rule is about.
	pgtest.Exec(d, `begin`)
	set(3, held("0"))
	need.Want(t, "4 0, 6 0, 7 0", "claimed %q, want 4, whose worker has crashed, 6, and 7, whose lease is over", d.claim("worker-1", 10))
	need.Want(t, "4 worker-1 t, 6 worker-1 t, 7 worker-1 t", "the view says %q", pgtest.Value[string](d, `select string_agg(concat_ws(' ', id, claimed_by, claimed_at = now(), processed_at), ', ' order by id)
		from m10_recovery.outbox where claimed_by = 'worker-1'`))
	pgtest.Want(d, 3, "%d leases of five minutes with the number of the claim, want 3", `select count(*) from outbox.outbox_events where locked_until = now() + interval '5 minutes' and lease = (select last_value from outbox.outbox_leases)`)
	pgtest.Exec(d, `commit`)
}

// A worker's claims keep the tokens rising after a crash of the server, as a dispatcher's do.
// CONTRACT: C-27
func TestM10RaisesTheFence(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	d.publish("1")
	d.publish("2")
	d.claim("worker-1", 1)
	pgtest.Exec(d, `truncate outbox.outbox_fence`) // as recovery does
	pgtest.Exec(d, `select setval('outbox.outbox_leases', 1, false)`)
	d.claim("worker-1", 1)
	need.That(t, pgtest.Value[bool](d, `select (select lease from outbox.outbox_events where seq = 2) > 32768 and exists (select from outbox.outbox_fence)`), "a claim after a crash does not raise the leases")
}

// Concurrent claims exclude each other and do not wait.
// REQUIREMENT: M10-10
func TestM10ClaimsDoNotWait(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	for i := range 5 {
		d.publish(fmt.Sprint(i))
	}
	other := newDatabase(t, d.dsn)
	pgtest.Exec(other, `set statement_timeout = '20s'`)
	pgtest.Exec(d, `begin`)
	need.Want(t, "1 0, 2 0", "claimed %q", d.claim("worker-1", 2))
	need.Want(t, "3 0, 4 0", "claimed %q during a claim that is open, want nothing", other.claim("worker-2", 2))
	pgtest.Exec(d, `commit`)
	pgtest.Want(d, "5", "claimed %q with the default batch", `select string_agg(id::text, ',') from m10_recovery.claim_outbox_events('worker-3')`)
	for _, batch := range []int{0, -1} {
		need.Want(t, "", "a batch of %v claimed %q", d.claim("worker-4", batch), batch)
	}
	need.Fails(t, "processor id", "got %v for a claim without a worker", need.Err(d.Exec(t.Context(), `select m10_recovery.claim_outbox_events(null)`)))
}

// An event that succeeded is processed for good. One that failed waits 1, 2, 4 … 1024 seconds, and only process_after
// says so; it is free again.
// CONTRACT: C-25, C-26, C-90
// REQUIREMENT: M10-4, M10-6, M10-13, M10-14, M10-15, M10-18, STORAGE-8
func TestM10CompletionDecidesTheNextTry(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	id := d.publish("42")
	const row = `select concat_ws(' ', retry_count, extract(epoch from process_after - now())::integer, claimed_at, claimed_by, processed_at) from m10_recovery.outbox where id = $1`
	for n, wait := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024} {
		pgtest.Exec(d, `update outbox.outbox_events set next_attempt_at = now()`)
		pgtest.Exec(d, `begin`)
		got, want := d.claim("w", 1), fmt.Sprint(id, " ", n)
		need.Must(t, got == want, "claimed %q, want %q", got, want)
		d.complete(id, "w", false)
		got, want = pgtest.Value[string](d, row, id), fmt.Sprint(n+1, " ", wait)
		need.Want(t, want, "after a failure it is %q, want %q", got)
		pgtest.Exec(d, `commit`)
	}
	pgtest.Want(d, "pending refused 5 refused 13", "of the failures the row has %q", `select concat_ws(' ', status, last_error, jsonb_array_length(failures), failures -> -1 ->> 'error', failures -> -1 ->> 'attempt') from outbox.outbox_events`)
	pgtest.Exec(d, `update outbox.outbox_events set next_attempt_at = now()`)
	d.claim("w", 1)
	pgtest.Exec(d, `begin`)
	d.complete(id, "w", true)
	pgtest.Want(d, "t 13", "after a success it is %q", `select concat_ws(' ', processed_at = now(), retry_count, claimed_by) from m10_recovery.outbox where id = $1`, id)
	pgtest.Exec(d, `commit`)
	d.complete(id, "w", false)
	got := pgtest.Value[string](d, `select status from outbox.outbox_events`)
	need.That(t, got == "delivered" && d.claim("w", 10) == "", "a processed event is %s, and may be claimed again", got)
}

// Only who holds an event completes it. Whoever has lost it is warned, and changes nothing.
// CONTRACT: C-23, C-90
// REQUIREMENT: M10-12
func TestM10CompletionIsGuarded(t *testing.T) {
	t.Parallel()
	var warnings []string
	config, err := pgx.ParseConfig(pgtest.Migrated(t))
	need.OK(t, err)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warnings = append(warnings, n.Severity+" "+n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	need.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	d := database{t, conn, config.ConnString()}
	d.upM10("outbox", m10, true)
	id := d.publish("42")
	state := func(want string) {
		t.Helper()
		pgtest.Want[string](d, want, "the event is %q, want %q", `select concat_ws(' ', status, claimed_by) from outbox.outbox_events join m10_recovery.outbox as o on o.id = seq`)
	}
	warnings = nil
	d.claim("worker-1", 1)
	for _, success := range []bool{true, false} {
		d.complete(id, "worker-2", success)
		state("processing worker-1")
	}
	pgtest.Exec(d, `update outbox.outbox_events set locked_until = now() - interval '1 second'`)
	d.claim("worker-2", 1)
	d.complete(id, "worker-1", true) // it has lost it
	state("processing worker-2")
	got := strings.Join(warnings, "\n")
	need.That(t, len(warnings) == 3 && strings.Contains(got, "WARNING m10: event 1 is not claimed by worker-1; nothing was changed"), "warnings:\n%s", got)
	const dispatcher = "01900000-0000-7000-8000-000000000001"
	pgtest.Exec(d, `update outbox.outbox_events set locked_by = $1`, dispatcher)
	for _, name := range []string{"worker-2", dispatcher} {
		d.complete(id, name, true)
	}
	state("processing " + dispatcher)
	pgtest.Exec(d, `update outbox.outbox_events set locked_until = now() - interval '1 hour'`)
	d.claim("worker-2", 1)
	pgtest.Exec(d, `update outbox.outbox_events set locked_until = now() - interval '1 hour'`)
	d.complete(id, "worker-2", true) // late, and no other worker has it
	state("delivered")
}

// The view has the columns of the contract's table. A dead event is neither waiting nor processed: it is not there.
// REQUIREMENT: M10-5, M10-20, M10-23
func TestM10ViewHasTheContractsColumns(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	const columns = `select string_agg(column_name || ' ' || data_type, ', ' order by ordinal_position) from information_schema.columns where table_schema = 'm10_recovery' and table_name = 'outbox'`
	got, want := pgtest.Value[string](d, columns), "id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, "+
		"created_at timestamp with time zone, processed_at timestamp with time zone, retry_count integer, process_after timestamp with time zone, "+
		"claimed_at timestamp with time zone, claimed_by text"
	need.Want(t, want, "the view has\n%s, want\n%s", got)
	d.publish("42")
	pgtest.Exec(d, `update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure'`)
	d.mustEnqueue(`'shop', 'm10', '{"n": 1}'`)
	pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, payload, status) values (gen_random_uuid(), 'shop', 'm10', '{}', 'delivered')`) // as an adoption brings it
	pgtest.Want(d, 0, "an event that no worker has claimed was retried %d times", `select retry_count from m10_recovery.outbox where processed_at is not null`)
	pgtest.Exec(d, `delete from outbox.outbox_events where status = 'delivered'`)
	pgtest.Want(d, `2||||{"n": 1}|0`, "the view shows %q, want the event that is not dead", `select string_agg(concat_ws('|', id, aggregate_type, aggregate_id, event_type, payload, processed_at, retry_count), ';') from m10_recovery.outbox`)
}

// process_after says when an event may be claimed, and may be set; what is processed may be deleted. Nothing else changes.
//
// REQUIREMENT: M10-4, M10-5
func TestM10ViewTakesProcessAfterAndDeletion(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	worker := d.as(migrations.M10Worker)
	id, other := worker.publish("42"), worker.publish("43")
	const isNull = `select process_after is null from m10_recovery.outbox where id = $1`
	need.That(t, pgtest.Value[bool](worker, isNull, id), "process_after of a new event is not null")
	pgtest.Exec(worker, `update m10_recovery.outbox set process_after = now() + interval '1 hour' where id = $1`, id)
	pgtest.Want(d, true, "first_due_at says %v", `select first_due_at = next_attempt_at from outbox.outbox_events where seq = $1`, id)
	need.Want(t, fmt.Sprint(other, " 0"), "claimed %q, want the event that is due", worker.claim("w", 10))
	worker.complete(other, "w", true)
	pgtest.Exec(worker, `update m10_recovery.outbox set process_after = null where id = $1`, id)
	need.That(t, pgtest.Value[bool](worker, isNull, id), "process_after is not null again")
	pgtest.Exec(worker, `delete from m10_recovery.outbox`)
	pgtest.Want[string](d, fmt.Sprint(id), "left are %s, want what is not processed", `select string_agg(seq::text, ' ') from outbox.outbox_events`)
	worker.wantRefused(`update m10_recovery.outbox set retry_count = 0`, `update m10_recovery.outbox set processed_at = now()`)
	for _, column := range []string{"retry_count = 9", "claimed_by = 'w'", `payload = '{"n": 2}'`, "claimed_at = now(), process_after = now()"} { // the owner's
		need.Fails(t, "sets process_after alone", "the view takes "+column+": %v", need.Err(d.Exec(t.Context(), `update m10_recovery.outbox set `+column)))
	}
	pgtest.Want(d, "m10 2026", "an update returned %s", `with d as (update m10_recovery.outbox set process_after = '2026-01-01Z' returning extract(year from process_after)) select 'm10 ' || extract from d`)
}

// A worker that crashes has not failed: the event is claimed again without a retry that is counted.
//
// REQUIREMENT: M10-14
func TestM10CrashCountsNoFailure(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	id := d.publish("42")
	for range 3 {
		got := d.claim("w", 1)
		need.Must(t, got == fmt.Sprint(id, " 0"), "claimed %q, want no retry", got)
		pgtest.Exec(d, `update outbox.outbox_events set locked_until = now() - interval '1 second'`)
	}
	d.claim("w", 1)
	d.complete(id, "w", false)
	pgtest.Want(d, 1, "retry_count is %d after one failure", `select retry_count from m10_recovery.outbox`)
	// Dispatchers suspect an event that ends processes. The outcome of a lease clears it, and another crash does not.
	pgtest.Exec(d, `update outbox.outbox_events set suspicion = 4, next_attempt_at = now()`)
	for _, want := range []string{"", "4"} {
		d.claim("w", 1)
		pgtest.Want[string](d, want, "the suspicion is %q, want %q", `select coalesce(suspicion::text, '') from outbox.outbox_events`)
		pgtest.Exec(d, `update outbox.outbox_events set suspicion = 4, locked_until = now() - interval '1 second'`)
	}
}

// The names of workers that have not claimed for a week are forgotten.
func TestM10WorkersAreForgotten(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	const names = `select string_agg(processor_id, ',' order by processor_id) from m10_recovery.processors`
	d.claim("host:1:ä", 1)
	d.claim("host:2", 1)
	pgtest.Exec(d, `update m10_recovery.processors set seen_at = now() - interval '8 days' where processor_id = 'host:2'`)
	d.claim("host:1:ä", 1) // which is known, and looks after nothing
	pgtest.Want(d, "host:1:ä,host:2", "workers: %s", names)
	d.claim("host:3", 1)
	pgtest.Want(d, "host:1:ä,host:3", "workers: %s", names)
}

// One holder at a time has a lock; it may take it again, make it last, and give it up. One that is over is free.
func TestM10LocksHaveOneHolder(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	for _, step := range []struct {
		call string
		want bool
	}{
		{`extend_lock('m10:outbox_processor', 'a', 300)`, false},
		{`release_lock('m10:outbox_processor', 'a')`, false},
		{`acquire_lock('m10:outbox_processor', 'a', 300)`, true},
		{`acquire_lock('m10:outbox_processor', 'a')`, true},
		{`acquire_lock('m10:outbox_processor', 'b', 300)`, false},
		{`acquire_lock('m10:other', 'b', 300)`, true},
		{`extend_lock('m10:outbox_processor', 'b', 300)`, false},
		{`release_lock('m10:outbox_processor', 'b')`, false},
		{`extend_lock('m10:outbox_processor', 'a', 1200)`, true},
		{`acquire_lock('m10:outbox_processor', 'b', 300)`, false},
		{`release_lock('m10:outbox_processor', 'a')`, true},
		{`acquire_lock('m10:outbox_processor', 'b', -1)`, true}, // over at once
		{`acquire_lock('m10:outbox_processor', 'a', 300)`, true},
		{`release_lock('m10:outbox_processor', 'b')`, false},
	} {
		need.Want(t, step.want, "%s is %v, want %v", pgtest.Value[bool](d, `select m10_recovery.`+step.call), step.call)
	}
}

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
	need.OK(t, err)
	_, script, _ := strings.Cut(string(page), "```sql\nalter table m10_recovery.outbox")
	rename, setval, _ := strings.Cut("alter table m10_recovery.outbox"+script[:strings.Index(script, "```")], ";")
	pgtest.Exec(d, rename)
	for old, want := range map[int64]int64{0: 7, 6: 7, 20: 21} { // the next seq, where the outbox has given 6
		pgtest.Exec(d, `truncate m10_recovery.outbox_before`)
		pgtest.Exec(d, `insert into m10_recovery.outbox_before select $1::bigint where $1 > 0`, old)
		pgtest.Exec(d, `select setval('outbox.outbox_events_seq_seq', 6)`)
		pgtest.Exec(d, setval)
		need.Want(t, want, "with their greatest id %d the next seq is %d, want %d", pgtest.Value[int64](d, `select nextval('outbox.outbox_events_seq_seq')`), old)
	}
	d.upM10("outbox", m10, true)
	for _, name := range []string{"", "it's", `a\b`, "$m10$", "a\nb", strings.Repeat("x", 256)} {
		refused(d, "outbox", migrations.M10{Namespace: name, Topic: "m10"}, "namespace")
		refused(d, "outbox", migrations.M10{Namespace: "shop", Topic: name}, "topic")
	}
	refused(d, "Outbox", m10, "schema")
	refused(newDatabase(t, pgtest.Empty(t)), "outbox", m10, "outbox_events")
}

// Whatever has a function's name is replaced, and what depends on it is named first.
// REQUIREMENT: M10-16
func TestM10ReplacesRoutinesThatNothingUses(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `create schema m10_recovery;
		create procedure m10_recovery.release_lock(n int) language sql as 'select 1';
		create aggregate m10_recovery.extend_lock(int) (sfunc = int4pl, stype = int);
		create function m10_recovery.acquire_lock() returns int language sql as 'select 1';
		create view public.watch as select m10_recovery.acquire_lock() as n`)
	_, err := migrations.UpM10(t.Context(), d.Conn, "outbox", m10)
	need.Fails(t, "view watch depends on function m10_recovery.acquire_lock(); drop what depends on it", "%v", err)
	pgtest.Exec(d, `drop view public.watch`)
	d.upM10("outbox", m10, true)
	pgtest.Want(d, "acquire_lock f, extend_lock f, release_lock f", "there are %s", `select string_agg(proname || ' ' || prokind::text, ', ' order by proname) from pg_proc
		where pronamespace = 'm10_recovery'::regnamespace and proname ~ '_lock$'`)
}

// With other settings the functions are replaced, and roles keep what they may do.
func TestM10ReinstallKeepsRights(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	worker := d.as(migrations.M10Worker)
	worker.publish("42")
	d.upM10("outbox", migrations.M10{Namespace: `sh"op ä`, Topic: "of {topic}", Upsert: true}, true)
	need.Want(t, "", "claimed %q of another topic", worker.claim("w", 10))
	first, second := worker.publish("42"), worker.publish("42")
	need.Want(t, second, "an upsert gave %d and %d", first)
	need.Want(t, "2 0", "claimed %q", worker.claim("w", 10))
	pgtest.Want(d, `sh"op ä / of {topic}`, "the event is of %s", `select concat_ws(' / ', namespace, topic) from outbox.outbox_events where seq = 2`)
}

// A worker's login calls the functions and reads the view, and no more.
func TestM10WorkerMayDoNoMore(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	worker := d.as(migrations.M10Worker)
	// What a worker puts in the way of the tables' names is not used with the owner's rights.
	pgtest.Exec(worker, `create temporary table outbox_events (seq bigint, live boolean, status text, locked_by uuid)`)
	id := worker.publish("42")
	worker.claim("w", 1)
	worker.complete(id, "w", true)
	pgtest.Exec(worker, `select m10_recovery.acquire_lock('l', 'h'), m10_recovery.extend_lock('l', 'h'), m10_recovery.release_lock('l', 'h')`)
	pgtest.Want(worker, 1, "the worker sees %d processed events, want 1", `select count(processed_at) from m10_recovery.outbox`)
	worker.wantRefused(
		`select * from outbox.outbox_events`,
		`select outbox.enqueue('shop', 'm10', '{}')`,
		`select * from m10_recovery.processors`,
		`delete from m10_recovery.distributed_locks`,
		`create table m10_recovery.mine ()`,
	)
	d.as(migrations.Dispatcher, migrations.Producer).wantRefused(`select m10_recovery.publish_outbox('a', 'b', 'c', '{}')`, `select * from m10_recovery.outbox`)
}
