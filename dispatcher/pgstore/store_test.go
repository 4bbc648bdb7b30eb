package pgstore_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/pgbouncer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Every verb works with a dispatcher's grants and no other right.
// REQUIREMENT: OVERVIEW-6, OVERVIEW-7, OVERVIEW-8, STORAGE-6, STORAGE-7, STORAGE-8, STORAGE-10, STORAGE-17, STORAGE-18, STORAGE-30, STORAGE-42
func TestStoreWorksWithDispatcherGrants(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, func(t *testing.T) storetest.Outbox {
		o := newOutbox(t, pgtest.Migrated(t))
		o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
		return o
	})
}

// The same without the delivered rows.
func TestStoreDeletesDeliveredRows(t *testing.T) {
	t.Parallel()
	storetest.ExerciseDelete(t, func(t *testing.T) storetest.Outbox {
		o := newOutbox(t, pgtest.Migrated(t))
		o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
		o.deletes = true
		return o
	})
}

// A store that keeps the order per key does all else as one that does not.
func TestStoreInOrderDoesAllElse(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, func(t *testing.T) storetest.Outbox {
		return ordered{newOutbox(t, pgtest.Migrated(t))}
	})
}

// ordered is an outbox whose stores claim in order per key.
type ordered struct{ outbox }

func (o ordered) Store(namespace string, worker uuid.UUID) dispatcher.Store {
	return orderedStore{o.outbox.Store(namespace, worker)}
}

type orderedStore struct{ dispatcher.Store }

func (s orderedStore) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if req.Keys == nil {
		req.Keys = &dispatcher.KeyOrder{PerKey: 3}
	}
	return s.Store.Claim(ctx, req)
}

// outbox is a migrated database.
type outbox struct {
	*testing.T
	*pgxpool.Pool               // of the owner
	stores        *pgxpool.Pool // of the stores
	deletes       bool          // whether the stores remove delivered rows
}

var _ storetest.Outbox = outbox{}

func newOutbox(t *testing.T, dsn string) outbox {
	t.Helper()
	pool := pgtest.Pool(t, dsn)
	return outbox{T: t, Pool: pool, stores: pool}
}

func (o outbox) Store(namespace string, worker uuid.UUID) dispatcher.Store {
	return pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: namespace, Worker: worker, DeleteDelivered: o.deletes})
}

// login makes a role with the grants of a kind, and returns its connection string.
func (o outbox) login(kind migrations.Kind) string {
	o.Helper()
	return pgtest.Login(o.T, o.Pool, kind)
}

func (o outbox) Enqueue(events ...storetest.Event) {
	o.Helper()
	var batch pgx.Batch
	for _, e := range events {
		headers := e.RawHeaders
		if headers == "" {
			headers = "{}"
		}
		batch.Queue(`insert into outbox.outbox_events (id, namespace, topic, tenant_id, dedupe_key, partition_key,
				event_type, aggregate_type, aggregate_id, headers, payload, next_attempt_at, max_attempts, retry, aggregate_sequence, expires_at)
			values ($1, $2, $3, $4, nullif($5, ''), nullif($6, ''), nullif($7, ''), nullif($8, ''), nullif($9, ''),
				$10, $11, now() + $12, nullif($13, 0), nullif($14, '')::jsonb, nullif($15::bigint, 0), nullif($16::timestamptz, '0001-01-01Z'))`,
			e.ID, e.Namespace, e.Topic, e.TenantID, e.DedupeKey, e.PartitionKey,
			e.EventType, e.AggregateType, e.AggregateID, headers, e.Payload, e.Delay, e.MaxAttempts, e.Retry, e.AggregateSequence, e.Expires)
	}
	err := o.SendBatch(o.Context(), &batch).Close()
	need.Must(o, err == nil, "enqueue: %v", err)
}

func (o outbox) Row(id uuid.UUID) (row storetest.Row) {
	o.Helper()
	var until *time.Time
	err := o.QueryRow(o.Context(), `select status, attempts, lease, next_attempt_at, locked_by, locked_until,
			coalesce(last_error, ''), coalesce(dead_reason, ''), updated_at
		from outbox.outbox_events where id = $1`, id).Scan(&row.Status, &row.Attempts, &row.Lease, &row.NextAttemptAt, &row.LockedBy,
		&until, &row.LastError, &row.DeadReason, &row.UpdatedAt)
	need.Must(o, err == nil || errors.Is(err, pgx.ErrNoRows), "read row %s: %v", id, err)
	if until != nil {
		row.LockedUntil = *until
	}
	return row
}

func (o outbox) Failures(id uuid.UUID) []storetest.Attempt {
	o.Helper()
	return pgtest.Value[[]storetest.Attempt](o, `select coalesce(failures, '[]') from outbox.outbox_events where id = $1`, id)
}

func (o outbox) DeadLetters(id uuid.UUID) []storetest.DeadLetter {
	o.Helper()
	rows, err := o.Query(o.Context(), `select namespace, topic, reason, class, code, place, fingerprint, attempts,
			coalesce(worker, '00000000-0000-0000-0000-000000000000'), coalesce(error, ''), failures, coalesce(response, ''), dead_at, resolution is not null
		from outbox.outbox_dead_letters where event_id = $1 order by id`, id)
	need.Must(o, err == nil, "read dead letters of %s: %v", id, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storetest.DeadLetter])
	need.Must(o, err == nil, "read dead letters of %s: %v", id, err)
	return all
}

func (o outbox) Revive(id uuid.UUID, attempts int) {
	o.Helper()
	pgtest.Exec(o, `update outbox.outbox_events set status = 'pending', dead_reason = null, attempts = $2, updated_at = now()
		where id = $1 and status = 'dead'`, id, attempts)
}

func (o outbox) Suspect(id uuid.UUID) {
	o.Helper()
	pgtest.Exec(o, `update outbox.outbox_events set suspicion = 5 where id = $1 and status = 'processing'`, id)
}

func (o outbox) Resolve(id uuid.UUID) {
	o.Helper()
	pgtest.Exec(o, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'test'
		where event_id = $1 and resolution is null`, id)
}

func (o outbox) Due(id uuid.UUID) {
	o.Helper()
	pgtest.Exec(o, `update outbox.outbox_events set next_attempt_at = now() where id = $1 and status = 'pending'`, id)
}

func (o outbox) Now() time.Time {
	o.Helper()
	return pgtest.Value[time.Time](o, `select clock_timestamp()`)
}

// Each state comes with a sentence that says what to do.
func TestSchemaStateNamesTheRemedy(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const next = `insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (`
	for _, test := range []struct {
		name, sql string
		state     dispatcher.SchemaState
		version   int
		remedy    string
	}{
		{"as migrated", ``, dispatcher.SchemaReady, migrations.Version, ""},
		{"an addition of a newer version", next + `1001, 'x', 'x', 1)`, dispatcher.SchemaReady, 1001, ""},
		{"a break by a newer version", next + `1002, 'x', 'x', 1002)`, dispatcher.SchemaTooNew, 1002, "upgrade the dispatcher"},
		{"an addition after a break", next + `1003, 'x', 'x', 1)`, dispatcher.SchemaTooNew, 1003, "upgrade the dispatcher"},
		{"another content of a migration", `update outbox.outbox_migrations set checksum = reverse(checksum) where version = 2`, dispatcher.SchemaDiffers, 1003,
			`has another 0002_replays than this dispatcher: another build has made it. Run the build that made it; or create the schema again, without its events: drop schema "outbox" cascade`},
		{"no migration", `delete from outbox.outbox_migrations`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
		{"no table", `drop table outbox.outbox_migrations`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
		{"no schema", `drop schema outbox cascade`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
	} {
		if test.sql != "" {
			pgtest.Exec(o, test.sql)
		}
		got, err := o.Store("shop", uuid.New()).Schema(t.Context())
		need.That(t, err == nil && got.State == test.state && got.Version == test.version && got.Required == migrations.Version,
			"%s: %+v, %v, want %s at version %d", test.name, got, err, test.state, test.version)
		need.That(t, (test.remedy == "") == (got.Message == "") && strings.Contains(got.Message, test.remedy),
			"%s: the message is %q, want one with %q", test.name, got.Message, test.remedy)
	}
	need.Fails(t, "dispatcher migrate up", "a verb without a schema: error is %v, want one with the remedy", need.Err(o.Store("shop", uuid.New()).Topics(t.Context())))
}

// Without its grants a dispatcher learns which ones to get.
func TestMissingGrantsAreNamed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Producer))
	store := o.Store("shop", uuid.New())
	_, schemaErr := store.Schema(t.Context())
	_, claimErr := store.Claim(t.Context(), share("orders", 1))
	for _, err := range []error{schemaErr, claimErr} {
		need.Fails(t, "dispatcher migrate grants", "error is %v, want one with the remedy", err)
	}
}

// Nothing is heard through a pooler in transaction mode, and TryListen says so. One in session mode is
// no obstacle, nor is none.
func TestTryListenFindsAPooler(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	connect := func(dsn string) func(context.Context) (*pgx.Conn, error) {
		return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }
	}
	need.Want(t, nil, "at the server itself: %v", pgstore.TryListen(t.Context(), connect(srv.DSN("postgres")), pgtest.Schema))
	for mode, remedy := range map[string]string{"session": "", "transaction": "set wakeUp to None"} {
		t.Run(mode, func(t *testing.T) {
			b, err := pgbouncer.Start(t.Context(), pgbouncer.Options{Server: srv, Settings: map[string]string{"pool_mode": mode}})
			need.Server(t, err, pgbouncer.ErrMissing)
			t.Cleanup(func() {
				need.Want(t, nil, "%v", b.Stop(context.Background()))
			})
			err = pgstore.TryListen(t.Context(), connect(b.DSN("postgres")), pgtest.Schema)
			need.That(t, (err == nil) == (remedy == "") && (err == nil || strings.Contains(err.Error(), remedy)), "in %s mode: %v", mode, err)
		})
	}
}

// A session that lives on without its LISTEN, as behind a proxy that has reconnected, is noticed, and another one hears
// the next wake-up.
func TestListenNoticesThatItIsDeaf(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	var conn *pgx.Conn // which its listener's goroutine alone uses
	connect := func(ctx context.Context) (_ *pgx.Conn, err error) {
		conn, err = pgx.Connect(ctx, dsn)
		return conn, err
	}
	var wakes atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pgstore.ListenOften(ctx, connect, pgtest.Schema, "shop", func() {
			if wakes.Add(1) == 1 {
				need.Want(t, nil, "%v", need.Err(conn.Exec(ctx, "unlisten *")))
			}
		}, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-done }()
	pgtest.Eventually(t, "it listens again", func() bool { return wakes.Load() == 2 })
	pgtest.Exec(pgtest.Open(t, dsn), "select pg_notify($1, 'shop')", pgtest.Schema)
	pgtest.Eventually(t, "it hears a wake-up", func() bool { return wakes.Load() == 3 })
}

// Every verb works behind a PgBouncer in transaction mode, and no statement fails first.
func TestStoreWorksBehindPgBouncer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	bouncer := pgtest.Bouncer(t, srv)
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	check(t, "Connect", err)
	_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
	check(t, "Up", errors.Join(err, conn.Close(t.Context())))
	o := newOutbox(t, srv.DSN("postgres"))
	o.fill(6, "a")
	o.stores, err = database.Pool(t.Context(), spec.Database{DSN: bouncer.DSN("postgres")}, "orders")
	check(t, "Pool", err)
	t.Cleanup(o.stores.Close)
	useAll(t, o.Store("shop", uuid.New()))
}
