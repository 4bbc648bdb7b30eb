package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
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
func TestStoreDeletes(t *testing.T) {
	t.Parallel()
	storetest.ExerciseDelete(t, func(t *testing.T) storetest.Outbox {
		o := newOutbox(t, pgtest.Migrated(t))
		o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
		o.deletes = true
		return o
	})
}

// A store that keeps the order per key does all else as one that does not.
func TestStoreInOrder(t *testing.T) {
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
				event_type, aggregate_type, aggregate_id, headers, payload, next_attempt_at, max_attempts, retry, aggregate_sequence)
			values ($1, $2, $3, $4, nullif($5, ''), nullif($6, ''), nullif($7, ''), nullif($8, ''), nullif($9, ''),
				$10, $11, now() + $12, nullif($13, 0), nullif($14, '')::jsonb, nullif($15::bigint, 0))`,
			e.ID, e.Namespace, e.Topic, e.TenantID, e.DedupeKey, e.PartitionKey,
			e.EventType, e.AggregateType, e.AggregateID, headers, e.Payload, e.Delay, e.MaxAttempts, e.Retry, e.AggregateSequence)
	}
	if err := o.SendBatch(o.Context(), &batch).Close(); err != nil {
		o.Fatalf("enqueue: %v", err)
	}
}

func (o outbox) Row(id uuid.UUID) (row storetest.Row) {
	o.Helper()
	var until *time.Time
	err := o.QueryRow(o.Context(), `select status, attempts, lease, next_attempt_at, locked_by, locked_until,
			coalesce(last_error, ''), coalesce(dead_reason, ''), updated_at
		from outbox.outbox_events where id = $1`, id).Scan(&row.Status, &row.Attempts, &row.Lease, &row.NextAttemptAt, &row.LockedBy,
		&until, &row.LastError, &row.DeadReason, &row.UpdatedAt)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		o.Fatalf("read row %s: %v", id, err)
	}
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
	if err != nil {
		o.Fatalf("read dead letters of %s: %v", id, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storetest.DeadLetter])
	if err != nil {
		o.Fatalf("read dead letters of %s: %v", id, err)
	}
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
