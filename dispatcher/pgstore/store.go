package pgstore

import (
	"context"
	"embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
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
	// Notify marks each dead letter, in the transaction that writes it, for a notification of an address. Defaults to
	// false.
	Notify bool
	// Dispatcher is the name under which ClaimRequest.TenantRate counts. Defaults to none.
	Dispatcher string
	// Fair has Schema look for the index that ClaimRequest.Fair needs. Defaults to false.
	Fair bool
	// ExpireAfter is how long an event without a time of its own is worth sending, since it was due first (CONTRACT C-18).
	// Defaults to 0, for ever.
	ExpireAfter time.Duration
	// WithoutPayloads has Claim leave the payloads in the database, for a sink that copies the events there: see Store.Copy.
	// Defaults to false.
	WithoutPayloads bool
	// Worker is the name of this process in leases. No two processes may share one. Defaults to a
	// random one.
	Worker uuid.UUID
}

// Store implements [dispatcher.Store]. It is safe for concurrent use.
type Store struct {
	pool        *pgxpool.Pool
	opts        Options
	sql         queries
	expireAfter *time.Duration // nil for none
	notify      string         // what a transaction in which rows may become dead adds to its settings
	claims      string         // the settings of a claim
	floors      floors
	turns       turns
	keyed       keyed
	copied      copied
	searchFor   time.Duration // of a claim in order per key
	frontier    frontier
	holders     holders
	pages       atomic.Int64 // how many the next look at the backlog reads; 0 for mostPages
}

var _ dispatcher.Store = (*Store)(nil)

// New returns a Store. It does not connect; [Store.Schema] reports whether the schema is as it must be.
func New(pool *pgxpool.Pool, opts Options) *Store {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	if opts.Worker == uuid.Nil {
		opts.Worker = uuid.New()
	}
	sql := load(opts.Schema)
	if opts.DeleteDelivered {
		sql["ack"] = sql["delete"]
	}
	var expireAfter *time.Duration
	if opts.ExpireAfter > 0 {
		expireAfter = &opts.ExpireAfter
	}
	for name, text := range sql {
		if opts.WithoutPayloads && strings.HasPrefix(name, "claim") {
			sql[name] = strings.ReplaceAll(text, "then payload else", "then null else")
		}
	}
	notify := ""
	if opts.Notify {
		notify = notifySetting
	}
	return &Store{
		notify:      notify,
		expireAfter: expireAfter,
		claims:      claimSettings + notify + "\n" + sql["fence"],
		pool:        pool,
		opts:        opts,
		searchFor:   searchFor,
		sql:         sql,
		floors:      floors{byTopic: map[string]floor{}},
		keyed:       keyed{byTopic: map[string]*passage{}, rows: map[uuid.UUID]heldRow{}},
		copied:      copied{leases: map[dispatcher.Lease]bool{}},
		turns:       turns{after: map[string]uuid.UUID{}},
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

// claimSettings are set for a claim; the arguments are frozenAfter and the ids of the rows to leave alone, with commas. A setting
// adds no argument to the statements, of which only the longest would know its number. The server sends the rows of a claim
// before it commits. A client that does not read them, since its process is frozen or its node is gone, would
// keep the rows locked and unleased for as long as TCP waits: for ever, if the client's kernel acknowledges.
const claimSettings = relaxed + `, set_config('tcp_user_timeout', $1::text, true), set_config('outbox.skip', $2::text, true)`

// notifySetting marks the dead letters of its transaction: the default of their column notify_at reads it. So no
// statement has an argument for it, and a dispatcher without an address writes nothing more.
const notifySetting = `, set_config('outbox.notify', 'on', true)`

// frozenAfter is how long the server waits for a client to read a claim, in milliseconds as text: a third of
// the lease, and at least a second. The server rolls the claim back when it ends. A claim also locks rows that
// it passes by, and others' acks and extensions wait for those: so it ends well within their leases.
func frozenAfter(lease time.Duration) string {
	return strconv.FormatInt(min(max(lease/3, time.Second).Milliseconds(), math.MaxInt32), 10)
}

// run runs one statement in a transaction of its own and one round trip: a batch is both. read is called for
// each try, so it begins with empty results. The error says which action failed.
func (s *Store) run(ctx context.Context, action, settings, sql string, args []any, read func(pgx.Rows) error) error {
	return s.wrap(action, s.send(ctx, func(batch *pgx.Batch) {
		if settings != "" {
			batch.Queue(settings)
		}
		batch.Queue(sql, args...).Query(read)
	}))
}

// collect is run that returns the rows.
func collect[T any](ctx context.Context, s *Store, action, settings, sql string, to pgx.RowToFunc[T], args ...any) (all []T, err error) {
	err = s.run(ctx, action, settings, sql, args, func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, to)
		return err
	})
	return all, err
}

// tries is how often a transaction is tried that lost to another one.
const tries = 3

// send runs a batch in a transaction. It is tried again at once if it lost to another transaction, and after the
// fence was raised if that was down. fill fills the batch, for each try a new one: it must begin with empty results.
//
// The first try takes one round trip, and the session's default isolation. The statements are made for READ
// COMMITTED: at a higher level they fail with a serialization error where they would have continued. So the
// further tries set READ COMMITTED, with two round trips more. That works behind PgBouncer too, where
// no default can be set for the session (package database sets it where there is no pooler).
func (s *Store) send(ctx context.Context, fill func(*pgx.Batch)) error {
	for try := 1; ; try++ {
		var batch pgx.Batch
		fill(&batch)
		var err error
		if try == 1 {
			err = s.pool.SendBatch(ctx, &batch).Close()
		} else {
			err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				return tx.SendBatch(ctx, &batch).Close()
			})
		}
		code := sqlState(err)
		if try == tries || code != codeSerialization && code != codeDeadlock && code != codeFenceDown {
			return err
		}
		if code == codeFenceDown {
			if err := s.raiseFence(ctx); err != nil {
				return err
			}
		}
	}
}

// raiseFence raises the leases and puts the fence up, where no other process has. It looks once more under its lock,
// for which it needs READ COMMITTED.
func (s *Store) raiseFence(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql["fence_raise"])
		return err
	})
	if err != nil {
		return fmt.Errorf("raise the leases: %w", err)
	}
	return nil
}

//go:embed sql/*.sql
var files embed.FS

// queries are the statements for one schema, by their names.
type queries map[string]string

// load reads the files, and puts the parts of claim_parts.sql into those of the claims. Of each claim there is one more, with
// "_look" behind its name, that leases nothing.
func load(schema string) queries {
	all := queries(sqlfile.All(files, schema))
	_, text, _ := strings.Cut(all["claim_parts"], "\n\n-- ")
	var parts []string
	for part := range strings.SplitSeq(text, "\n\n-- ") {
		name, sql, _ := strings.Cut(part, "\n")
		parts = append(parts, "{"+name+"}", strings.TrimSpace(sql))
	}
	expand := strings.NewReplacer(parts...).Replace
	for name, sql := range all {
		if strings.HasPrefix(name, "claim") {
			all[name] = expand(expand(expand(sql))) // parts have parts
			if before, _, leases := strings.Cut(sql, "{lease}"); leases {
				all[name+"_look"] = expand(expand(expand(before + "{look}")))
			}
		}
	}
	return all
}
