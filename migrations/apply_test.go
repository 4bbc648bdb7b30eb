package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const header = "-- oldest-reader: 1\n"

// A migration that has to wait for a long reader lets producers pass, and is applied when the reader is gone.
func TestUpBehindAReader(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	reader, producer := newDatabase(t, d.dsn), newDatabase(t, d.dsn)
	pgtest.Exec(reader, `begin`)
	pgtest.Exec(reader, `select count(*) from outbox.outbox_events`)
	const add = header + `alter table outbox_events add column later integer;`
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait) // for a hang
	defer cancel()
	_, err := migrations.UpFilesOnce(ctx, d.Conn, add)
	need.That(t, err != nil && strings.Contains(err.Error(), "_second: ") && strings.Contains(err.Error(), "pg_stat_activity"),
		"the migration behind a reader: %v, want that it gave up, and why", err)

	type result struct {
		applied []migrations.Applied
		err     error
	}
	done := make(chan result, 1)
	go func() {
		applied, err := migrations.UpFiles(t.Context(), d.Conn, add)
		done <- result{applied, err}
	}()
	pgtest.Exec(producer, `set statement_timeout = '1min'`) // for a hang
	waited := func() bool {
		return pgtest.Value[bool](producer, `select exists (select from pg_locks where not granted and relation = 'outbox.outbox_events'::regclass)`)
	}
	for !waited() { // the migration waits for its lock
		if len(done) > 0 {
			t.Fatalf("the migration did not wait: %+v", <-done)
		}
	}
	for range 20 { // while it waits, and between its tries
		producer.mustEnqueue(`'shop', 'orders', '{}'`)
	}
	pgtest.Exec(reader, `commit`)
	r := <-done
	need.That(t, r.err == nil && len(r.applied) == 1, "after the reader: %+v", r)
	pgtest.Want(d, 0, "the column has %d values", `select count(later) from outbox.outbox_events`)
}

// A login whose transactions are serializable by default migrates at READ COMMITTED all the same.
func TestUpMigratesAtReadCommitted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `set default_transaction_isolation = 'serializable'`)
	need.OK(t, need.Err(migrations.UpFiles(t.Context(), d.Conn, header+`create table level as select current_setting('transaction_isolation') as name;`)))
	pgtest.Want(d, "read committed", "the migration ran at %s", `select name from outbox.level`)
}

// Who may call a function before a migration that drops and creates it, may call it after.
func TestUpKeepsRights(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	producer, stranger := d.as(migrations.Producer), d.as()
	pgtest.Exec(d, `grant usage on schema outbox to public`)
	const replace = header + `drop function enqueue_batch; drop function enqueue;
		create function enqueue(p_namespace text, p_topic text, p_payload jsonb, p_more integer default 1)
			returns table (id uuid, inserted boolean) language sql as $$ select gen_random_uuid(), true $$;
		revoke all on function enqueue from public;`
	applied, err := migrations.UpFiles(t.Context(), d.Conn, replace)
	need.Must(t, err == nil && len(applied) == 1, "%+v, %v", applied, err)
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	stranger.wantRefused(`select outbox.enqueue('shop', 'orders', '{}')`)
}

// A statement that can have no transaction runs without one, is recorded, and what a broken try has left is
// dropped first.
func TestUpOutsideATransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const index = header + "-- transaction: none\ncreate unique index concurrently if not exists outbox_events_more on outbox_events (topic);"
	for range 2 {
		d.mustEnqueue(`'shop', 'orders', '{}'`)
	}
	if applied, err := migrations.UpFiles(t.Context(), d.Conn, index); err == nil || len(applied) != 0 {
		t.Fatalf("a unique index over equal values: %+v, %v", applied, err)
	}
	const valid = `select indisvalid from pg_index where indexrelid = 'outbox.outbox_events_more'::regclass`
	need.Must(t, !pgtest.Value[bool](d, valid), "the broken try left no invalid index: the test tests nothing")
	pgtest.Exec(d, `delete from outbox.outbox_events`)
	applied, err := migrations.UpFiles(t.Context(), d.Conn, index, header+`create table third ();`)
	need.Must(t, err == nil && len(applied) == 2 && strings.HasSuffix(applied[0].Name, "_second"), "the second try: %+v, %v", applied, err)
	need.That(t, pgtest.Value[bool](d, valid), "the index is still invalid")
	pgtest.Want(d, 0, "%d locks are left", `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`)
	pgtest.Want(d, `"$user", public`, "search_path stayed %s", `show search_path`)
	if again, err := migrations.UpFiles(t.Context(), d.Conn, index, header+`create table third ();`); err != nil || len(again) != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// While an index is built concurrently behind an old transaction, producers continue, and a second migrator waits
// and finds the work done.
func TestUpConcurrentlyOutside(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	old, producer, second := newDatabase(t, d.dsn), newDatabase(t, d.dsn), newDatabase(t, d.dsn)
	pgtest.Exec(old, `begin isolation level repeatable read`)
	pgtest.Exec(old, `select count(*) from outbox.outbox_events`)
	const index = header + "-- transaction: none\ncreate index concurrently if not exists outbox_events_more on outbox_events (created_at);"
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait) // for a hang
	defer cancel()
	counts := make(chan int, 2)
	for _, conn := range []database{d, second} {
		go func() {
			applied, err := migrations.UpFiles(ctx, conn.Conn, index)
			need.Want(t, nil, "%v", err)
			counts <- len(applied)
		}()
	}
	pgtest.Exec(producer, `set statement_timeout = '1min'`) // for a hang
	for !pgtest.Value[bool](producer, `select exists (select from pg_stat_activity where query like '%index concurrently%' and wait_event_type = 'Lock')`) {
		producer.mustEnqueue(`'shop', 'orders', '{}'`)
		need.Must(t, len(counts) == 0, "the index did not wait for the old transaction: the test tests nothing")
	}
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(old, `commit`)
	need.Want(t, 1, "two migrators applied %d migrations, want one", <-counts+<-counts)
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is an empty database.
type database struct {
	*testing.T
	*pgx.Conn
	dsn string
}

func newDatabase(t *testing.T, dsn string) database {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	need.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return database{t, conn, dsn}
}

func (d database) up(schema string) []migrations.Applied {
	d.Helper()
	applied, err := migrations.Up(d.Context(), d.Conn, schema)
	need.OK(d, err)
	return applied
}

func TestUpMakesTheSchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	before, err := migrations.Status(t.Context(), d.Conn, "outbox")
	need.Must(t, err == nil && before.Version == 0 && len(before.Applied) == 0 && len(before.Pending) == migrations.Version, "status of an empty database is %+v, %v", before, err)
	applied := d.up("outbox")
	need.Must(t, len(applied) == migrations.Version, "applied %+v, want %d migrations", applied, migrations.Version)
	for i, a := range applied {
		need.That(t, a.Version == i+1 && strings.HasPrefix(a.Name, "000") && len(a.Checksum) == 64 && a.OldestReader >= 1 && time.Since(a.AppliedAt) <= time.Hour,
			"applied %+v as number %d", a, i+1)
	}
	after, err := migrations.Status(t.Context(), d.Conn, "outbox")
	need.That(t, err == nil && after.Version == migrations.Version && len(after.Pending) == 0 && slices.EqualFunc(after.Applied, applied, same),
		"status is %+v, %v, want %+v", after, err, applied)
	again := d.up("outbox")
	need.That(t, len(again) == 0, "a second Up applied %+v", again)
}

func same(a, b migrations.Applied) bool {
	return a.AppliedAt.Equal(b.AppliedAt) && a.Checksum == b.Checksum && a.Version == b.Version && a.Name == b.Name
}

// Several migrators at once do the work once.
func TestConcurrentMigratorsApplyOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	var group errgroup.Group
	counts := make([]int, 8)
	for i := range counts {
		d := newDatabase(t, dsn)
		group.Go(func() error {
			applied, err := migrations.Up(t.Context(), d.Conn, "outbox")
			counts[i] = len(applied)
			return err
		})
	}
	need.OK(t, group.Wait())
	sum := 0
	for _, n := range counts {
		sum += n
	}
	need.That(t, sum == migrations.Version, "eight migrators applied %v, want %d in all", counts, migrations.Version)
}

// withdraw comes to an outbox that runs. Whether the server has forgotten a claim of the events that are there is not known, so
// they are too late. The fence stays up: no lease is raised, and no claim waits.
// CONTRACT: C-17, C-27
func TestWithdrawComesToEventsThatAreThere(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	need.OK(t, migrations.UpTo(t.Context(), d.Conn, 6))
	d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'before'`)
	d.up("outbox")
	d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'after'`)
	pgtest.Want(d, "too late, withdrawn", "they are %s, want %s", `select string_agg(result, ', ') from outbox.withdraw_batch('{shop,shop}', '{orders,orders}', '{before,after}')`)
	pgtest.Want(d, true, "the fence is up: %t", `select exists (select from outbox.outbox_fence where server_started = pg_postmaster_start_time() and inserted_by = xmin)`)
}

// An owner that is not a superuser, and may create a schema, has all that the migrations need; so has what they make.
// CONTRACT: C-17
func TestOwnerNeedsNoMoreThanToCreate(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	root := newDatabase(t, dsn)
	role := pgx.Identifier{"outbox_owner_" + strings.ToLower(rand.Text())}.Sanitize()
	pgtest.Exec(root, `create role `+role+` login password 'test'; grant create on database `+pgx.Identifier{root.Config().Database}.Sanitize()+` to `+role)
	t.Cleanup(func() {
		need.OK(t, need.Err(root.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role)))
	})
	config, err := pgx.ParseConfig(dsn)
	need.OK(t, err)
	config.User, config.Password = strings.Trim(role, `"`), "test"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	need.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	owner := database{t, conn, dsn}
	owner.up("outbox")
	owner.setJournal(true, week)
	owner.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'a'`)
	pgtest.Want(owner, "withdrawn", "the withdrawal says %s, want %s", `select result from outbox.withdraw('shop', 'orders', 'a')`)
	pgtest.Want(owner, "insert withdraw", "the journal has %s, want %s", `select string_agg(operation, ' ' order by lsn) from outbox.outbox_journal where event_id is not null`)
}

// The schema is the user's choice; two in one database do not touch each other.
func TestUpLeavesOtherSchemasAlone(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	longest := strings.Repeat("s", 63)
	pgtest.Exec(d, `create schema "order"`) // a word of SQL, and there already
	for _, schema := range []string{"order", "_2", longest} {
		d.up(schema)
		quoted := pgx.Identifier{schema}.Sanitize()
		pgtest.Exec(d, `select `+quoted+`.enqueue('shop', 'orders', '{}')`)
		need.Want(t, 1, "schema %q has %d events, want 1", pgtest.Value[int](d, `select count(*) from `+quoted+`.outbox_events`), schema)
	}
	pgtest.Want(d, 0, "%d tables came to be in public", `select count(*) from pg_tables where schemaname = 'public'`)
	pgtest.Want(d, `"$user", public`, "search_path stayed %s", `show search_path`)
	for _, schema := range []string{"", longest + "s", "pg_outbox", "Outbox", "a-b", `a"b`, "o'brien", "9a"} {
		need.Fails(t, "outbox", "schema %q: error is %v, want one that names a good name", need.Err(migrations.Up(t.Context(), d.Conn, schema)), schema)
		need.That(t, need.Err(migrations.Status(t.Context(), d.Conn, schema)) != nil, "status of schema %q has no error", schema)
	}
}

// An applied migration that has changed since is noticed and named, and nothing more is done.
func TestUpRefusesEditedMigration(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `update outbox.outbox_migrations set checksum = repeat('0', 64) where version = 1`)
	_, upErr := migrations.Up(t.Context(), d.Conn, "outbox")
	state, statusErr := migrations.Status(t.Context(), d.Conn, "outbox")
	for _, err := range []error{upErr, statusErr} {
		need.That(t, err != nil && strings.Contains(err.Error(), "0001_outbox") && strings.Contains(err.Error(), "run that build"),
			"error is %v, want one that names the migration and the remedy", err)
	}
	need.That(t, state.Version == migrations.Version, "status is %+v, want it with the error", state)
}

// A database that a newer binary has migrated is left as it is.
func TestUpRefusesNewerSchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	next := migrations.Version + 1
	pgtest.Exec(d, `insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values ($1, 'future', 'x', $1)`, next)
	applied := d.up("outbox")
	need.That(t, len(applied) == 0, "applied %+v to a newer schema", applied)
	state, err := migrations.Status(t.Context(), d.Conn, "outbox")
	need.That(t, err == nil && state.Version == next && len(state.Pending) == 0, "status is %+v, %v, want version %d", state, err, next)
}

// A migration that fails leaves nothing of itself behind.
func TestUpRollsFailedMigrationBack(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	pgtest.Exec(d, `create schema outbox; create table outbox.outbox_dead_letters (mine integer)`)
	applied, err := migrations.Up(t.Context(), d.Conn, "outbox")
	need.Must(t, err != nil && strings.Contains(err.Error(), "0001_outbox") && len(applied) == 0, "Up over a foreign table: %+v, %v", applied, err)
	pgtest.Want(d, 1, "the schema has %d tables, want the foreign one alone", `select count(*) from pg_tables where schemaname = 'outbox'`)
}

// A state that is none, and a row whose columns do not fit its state, are refused by the tables, whoever writes them.
// CONTRACT: C-40
// REQUIREMENT: STORAGE-6, STORAGE-17, cpt-cf-mini-chat-state-usage-outbox-row
func TestTablesRefuseInvalidStates(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	const deadLetter = `insert into outbox.outbox_dead_letters (event_id, namespace, topic, attempts, reason) select id, namespace, topic, 1, `
	for sql, constraint := range map[string]string{
		`update outbox.outbox_events set status = 'failed'`:                    "outbox_events_status",
		`update outbox.outbox_events set status = 'dlq'`:                       "outbox_events_status",
		`update outbox.outbox_events set status = 'dead'`:                      "outbox_events_status",
		`update outbox.outbox_events set dead_reason = 'poison_message'`:       "outbox_events_status",
		`update outbox.outbox_events set status = 'processing'`:                "outbox_events_status",
		`update outbox.outbox_events set locked_by = id, locked_until = now()`: "outbox_events_status",
		deadLetter + `'bored' from outbox.outbox_events`:                       "outbox_dead_letters_reason",
		deadLetter + `'max_retries' from outbox.outbox_events`:                 "outbox_dead_letters_reason",
	} {
		_, err := d.Exec(t.Context(), sql)
		pg := (*pgconn.PgError)(nil)
		need.That(t, errors.As(err, &pg) && pg.ConstraintName == constraint, "%s: %v, want a violation of %s", sql, err, constraint)
	}
	for _, reason := range []string{"max_retries_exceeded", "poison_message", "schema_validation_failed", "processing_timeout", "permanent_failure"} {
		pgtest.Exec(d, deadLetter+`'`+reason+`' from outbox.outbox_events`)
	}
}

// A migration that waits says for which process, and continues when that ends. It waits for another migrator no longer
// than stated, and then says which process that is.
func TestWaitsAreReported(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	d, holder := newDatabase(t, dsn), newDatabase(t, dsn)
	process := fmt.Sprintf(", which the process %d of user ", holder.PgConn().PID())
	begin := func(conn *pgx.Conn, statement string, args ...any) (end func()) {
		tx, err := conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), statement, args...)
		}
		need.OK(t, err)
		return func() { _ = tx.Rollback(context.Background()) }
	}
	lock := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table outbox.outbox_events")
		return err
	}
	need.OK(t, need.Err(d.Exec(t.Context(), `create table public.theirs ()`)))
	lockTheirs := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table public.theirs in exclusive mode")
		return migrations.OnTable("public.theirs", false, err)
	}
	for what, test := range map[string]struct {
		statement string
		args      []any
		lock      func(pgx.Tx) error
		want      string
	}{
		"a table":  {"select from outbox.outbox_events", nil, lock, "waiting for a lock on a table of schema outbox" + process},
		"migrator": {"select pg_advisory_xact_lock(" + migrations.Migrators + ")", []any{"outbox"}, lock, "waiting for another migrator of schema outbox" + process},
		"theirs":   {"lock table public.theirs in row exclusive mode", nil, lockTheirs, "waiting for a lock on table public.theirs" + process},
	} {
		done := func() {}
		if what == "theirs" { // an older transaction that is not in the way
			done = begin(newDatabase(t, dsn).Conn, "select from public.theirs, outbox.outbox_events")
		}
		end := begin(holder.Conn, test.statement, test.args...)
		var said []string
		ctx := migrations.ReportWaits(t.Context(), func(sentence string) {
			said = append(said, sentence)
			end()
		})
		need.Want(t, nil, "%s: %v", migrations.TransactSoon(ctx, d.Conn, time.Hour, test.lock), what)
		need.That(t, len(said) != 0 && strings.HasPrefix(said[0], test.want) && strings.Contains(said[0], " since 2"),
			"%s: it reports %q, want %q and since when", what, said, test.want)
		done()
	}
	defer begin(holder.Conn, "select pg_advisory_xact_lock("+migrations.Migrators+")", "outbox")()
	need.Fails(t, process, "got %v, want an error that names%s", migrations.TransactSoon(t.Context(), d.Conn, 50*time.Millisecond, lock))
}

// The producers' page makes the schema for tests by psql. Producers can use it, and a migration of it says what to do.
func TestSchemaForTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../dispatcher/client/producer/README.md")
	need.OK(t, err)
	command := regexp.MustCompile("(?s)<!-- schema for tests -->\n```sh\n(.*?)\n```").FindSubmatch(page)
	need.Must(t, command != nil, "the page has no commands for the schema")
	file := t.TempDir() + "/outbox.sql"
	sh := exec.Command("sh", "-euc", strings.ReplaceAll(string(command[1]), "> outbox.sql", "> "+file))
	sh.Dir = ".."
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	need.OK(t, err)
	dsn := pgtest.Empty(t)
	made := newDatabase(t, dsn)
	need.OK(t, need.Err(made.PgConn().Exec(t.Context(), string(text)).ReadAll()))
	d := newDatabase(t, dsn)
	need.Want(t, nil, "%v", need.Err(d.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`)))
	const want = "the schema was made without a record of its migrations, as by psql; drop it (drop schema \"outbox\" cascade)"
	need.Fails(t, want, "got %v, want an error with %q", need.Err(migrations.Up(t.Context(), d.Conn, "outbox")))
}

// The signatures that the producer's page prints are those of the functions.
func TestReadmeHasTheSignatures(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("../dispatcher/client/producer/README.md")
	need.OK(t, err)
	for _, name := range []string{"enqueue", "enqueue_batch", "withdraw", "withdraw_batch"} {
		found := regexp.MustCompile("(?s)<!-- " + name + " -->\n```sql\noutbox\\." + name + `\((.*?)\n\)` + "\n```").FindSubmatch(page)
		if found == nil {
			t.Errorf("the page does not print %s", name)
			continue
		}
		got := strings.Join(strings.Fields(string(found[1])), " ")
		arguments := pgtest.Value[string](d, `select pg_get_function_arguments(p.oid) from pg_proc as p where proname = $1 and pronamespace = 'outbox'::regnamespace`, name)
		if result := pgtest.Value[string](d, `select pg_get_function_result(p.oid) from pg_proc as p where proname = $1 and pronamespace = 'outbox'::regnamespace`, name); strings.HasPrefix(result, "TABLE") {
			arguments += ", " + result
		}
		need.Want(t, arguments, "the page says\n%s\nwant\n%s", got)
	}
}

// The producers' page has the code of each wrong payload.
func TestReadmeHasTheCodes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("../dispatcher/client/producer/README.md")
	need.OK(t, err)
	for payload, code := range map[string]string{`{"a": NaN`: "22P02", `"\u0000"`: "22P05"} {
		var pg *pgconn.PgError
		if _, err := d.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', $1::text::jsonb)`, payload); !errors.As(err, &pg) || pg.Code != code {
			t.Errorf("%s: got %v, want the code %s", payload, err, code)
		}
		need.That(t, strings.Contains(string(page), " "+code), "the page does not name %s", code)
	}
}

// The page for who runs the database names everything that the schema has.
func TestReadmeNamesEachObject(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("README.md")
	need.OK(t, err)
	for _, name := range pgtest.Value[[]string](d, `select array_agg(name) from (
		select relname from pg_class where relnamespace = 'outbox'::regnamespace and relkind in ('r', 'v', 'S')
			and not exists (select from pg_depend where objid = pg_class.oid and deptype = 'i')
		union all select proname from pg_proc where pronamespace = 'outbox'::regnamespace) as o (name)`) {
		need.That(t, strings.Contains(string(page), "`"+name+"`"), "the page does not name %s", name)
	}
}
