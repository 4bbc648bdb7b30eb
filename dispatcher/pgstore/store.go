// Package pgstore is the [dispatcher.Store] on PostgreSQL.
//
// Each verb is one transaction and one round trip, and its SQL is in a file of its own under sql/.
// Nothing depends on the session, so a pool behind PgBouncer in transaction mode works.
//
// Claims, acks, extensions and retries do not wait for the disk (synchronous_commit is off for their
// transactions): when the database crashes, one of the last moments may be lost, and its event is
// delivered again. Releases and deaths do wait.
//
// A failover to a standby that was behind loses more: what the old primary committed last and never
// sent. A lost ack or retry means that its event is delivered again, a lost claim that it is delivered
// again under the same fencing token, a lost death that it is tried once more. An event whose insert is
// lost may have been delivered all the same. Where that matters, make the standby synchronous
// (synchronous_standby_names): then events and deaths survive, and claims and acks are as above.
package pgstore

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Options bind a [Store].
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Namespace is whose events are dispatched.
	Namespace string
	// DeleteDelivered makes Ack remove the rows instead of marking them delivered: retention 0
	// (CONTRACT C-60). Then nothing remembers a dedupe key whose event was delivered: the same one
	// can be enqueued again, and is a new event. Defaults to false.
	DeleteDelivered bool
	// Worker is the name of this process in leases. No two processes may share one. Defaults to a
	// random one.
	Worker uuid.UUID
}

// Store implements [dispatcher.Store]. It is safe for concurrent use.
type Store struct {
	pool      *pgxpool.Pool
	schema    string
	namespace string
	worker    uuid.UUID
	sql       queries
	floors    floors
	keyed     keyed
	holders   holders
}

var _ dispatcher.Store = (*Store)(nil)

// New returns a Store. It does not connect; [Store.Schema] tells whether the schema is as it must be.
func New(pool *pgxpool.Pool, opts Options) *Store {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	if opts.Worker == uuid.Nil {
		opts.Worker = uuid.New()
	}
	sql := load(opts.Schema)
	if opts.DeleteDelivered {
		sql.ack = sql.delete
	}
	return &Store{
		pool:      pool,
		schema:    opts.Schema,
		namespace: opts.Namespace,
		worker:    opts.Worker,
		sql:       sql,
		floors:    floors{byTopic: map[string]floor{}},
		keyed:     keyed{byTopic: map[string]*passage{}},
	}
}

// Every statement here starts from an index that fits it exactly, and has one good plan. The planner
// must not think otherwise when its statistics are empty or old, so what tempts it is switched off (a
// sort too: it would read a key's rows from the index that is not in their order). And it need not think
// each time, so the plan is kept. The settings end with their transaction.
const (
	// durable transactions wait for the disk as the session does. The time is the transaction's.
	durable = `select now(), set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`
	// relaxed transactions do not wait.
	relaxed = durable + `, set_config('synchronous_commit', 'off', true)`
)

// run runs one statement in a transaction of its own and one round trip: a batch is both.
func (s *Store) run(ctx context.Context, settings, sql string, args []any, read func(pgx.Rows) error) error {
	var batch pgx.Batch
	batch.Queue(settings)
	batch.Queue(sql, args...).Query(read)
	return s.pool.SendBatch(ctx, &batch).Close()
}
