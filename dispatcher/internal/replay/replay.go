// Package replay puts dead events back, or marks them as handled: a set of dead letters, chosen by a filter, at a
// rate (CONTRACT C-42).
//
//	replays := replay.New(pool, replay.Options{})
//	request := config.ReplayRequest{
//		Namespace: "shop", Filter: config.DeadLetterFilter{Group: "7f3a9c21"}, Action: config.ActionReplay,
//		Reason: "CHG-812", RequestedBy: "alice", Canary: 10,
//	}
//	would, err := replays.DryRun(ctx, request)                      // changes nothing
//	progress, err := replays.Begin(ctx, request)                    // fixes the set
//	progress, err = replays.Run(ctx, progress.ID, replay.RunOptions{Wait: true}) // moves it
//
// # What is certain
//
// A replay and its set are rows of the database, and everything that is done of it is a transaction there that
// waits for the disk. A process that is killed at any moment has done a batch or has not; the next [Replays.Run] of
// the same id continues after it. A dead letter is locked, looked at and resolved in one transaction, so that replays
// that overlap do each row once: the second one skips it, and says so.
//
// A row is put back with its id, its dedupe key and its place in the order. Its retry budget is whole again, and its
// fencing token keeps rising: a consumer that fences on the token accepts the replay (CONTRACT C-27).
//
// # Order per key
//
// By default the order per key is kept: of a key's dead letters the first goes first, and the next one when that was
// delivered. When it is dead again, the others of its key are skipped. For a dispatcher without order, say AnyOrder: a
// key with many dead letters would only be slower.
//
// The dispatcher itself never delivers an event before an earlier live one of its key. Events that were delivered
// while an earlier one was dead stay delivered: that is what onDead Continue means.
//
// # Outcome
//
// Delivered means delivered, and not put back: [Replays.Run] reads the rows until each has an outcome. An event
// that fails again is dead again when its retries are used up, which takes the dispatcher hours with the defaults.
package replay

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed queries.sql
var files embed.FS

// DB is a pgx pool or connection. The login needs what `dispatcher migrate grants --for replay` prints.
type DB interface {
	// BeginTx starts a transaction, or returns an error.
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Options bind [Replays].
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Namespace is the outbox namespace whose operations may be read, run and stopped. Defaults to empty: all.
	Namespace string
}

// Replays begins, runs and stops the operations on the dead letters of an outbox.
type Replays struct {
	db        DB
	schema    string
	namespace string
	sql       func(name string) string // a statement
}

// New returns the operations of an outbox. It does not connect.
func New(db DB, opts Options) *Replays {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	return &Replays{db: db, schema: opts.Schema, namespace: opts.Namespace, sql: sqlfile.Reader(files, opts.Schema)}
}

// DryRun counts what [Replays.Begin] would choose, and changes nothing. Waiting is what would be done.
// It fails for a request that is not valid, and when the database does.
func (r *Replays) DryRun(ctx context.Context, request Request) (p status.Replay, err error) {
	if request, err = complete(request); err != nil {
		return p, err
	}
	err = r.transaction(ctx, "dry run", pgx.ReadOnly, func(tx pgx.Tx) error {
		p = status.Replay{Namespace: request.Namespace, Action: string(request.Action), Rate: request.Rate}
		statement, args := r.matched(r.sql("dry_run"), request, string(request.Action), limit(request.Limit))
		if _, err := tx.Exec(ctx, oneByOne); err != nil {
			return err
		}
		var claimed, gone, notDead int64
		if err := tx.QueryRow(ctx, statement, args...).Scan(&p.Waiting, &claimed, &gone, &notDead); err != nil {
			return err
		}
		p.Matched = p.Waiting
		countSkipped(&p, status.SkippedClaimed, claimed)
		countSkipped(&p, status.SkippedGone, gone)
		countSkipped(&p, status.SkippedNotDead, notDead)
		return nil
	})
	return p, err
}

// Missing returns the ids of a request's filter, which must be valid, that are of no dead letter which it may choose: no event
// has them, or it was never dead, or is not any more. It fails when the database does.
func (r *Replays) Missing(ctx context.Context, request Request) (ids []string, err error) {
	request.Limit = 0 // what another operation has is there
	statement, args := r.matched(r.sql("missing"), request, request.Filter.IDs)
	err = r.transaction(ctx, "look for the ids", pgx.ReadOnly, func(tx pgx.Tx) error { return tx.QueryRow(ctx, statement, args...).Scan(&ids) })
	return ids, err
}

// limit is null for no limit.
func limit(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

// matched is a statement about the dead letters of a request, and its arguments, which come after args.
func (r *Replays) matched(statement string, request Request, args ...any) (string, []any) {
	filter := request.Filter
	filter.Resolved = request.Action == ActionReopen
	condition, args := filter.Where(request.Namespace, request.Topics, args...)
	switch request.Action {
	case ActionReplay:
		condition += "\n    and " + r.sql("last")
	case ActionReopen:
		condition += " and l.resolution = 'discarded'\n    and " + r.sql("last")
	}
	if request.Limit > 0 {
		condition += "\n    and " + r.sql("free") // else those that another has would be the first so many, again and again
	}
	return strings.Replace(statement, "where CONDITION", "where "+condition, 1), args
}

// Begin begins an operation, in one transaction: a replay claims its dead letters, and puts none back yet; a discard or a reopen
// is done. When an operation of its id exists, Begin returns the progress of that one, and changes nothing.
// It fails for a request that is not valid, and when the database does.
func (r *Replays) Begin(ctx context.Context, request Request) (p status.Replay, err error) {
	if request, err = complete(request); err != nil {
		return p, err
	}
	expires := ""
	if request.Expires > 0 {
		expires = fmt.Sprintf("%ds", int64(request.Expires.Seconds()))
	}
	filter, err := json.Marshal(struct {
		Topics  []string `json:"topics,omitempty"`
		Expires string   `json:"expires,omitempty"`
		deadletters.Filter
	}{request.Topics, expires, request.Filter})
	if err != nil {
		return p, fmt.Errorf("write down the filter: %w", err)
	}
	err = r.transaction(ctx, fmt.Sprintf("begin %s %s", request.Action, request.ID), pgx.ReadWrite, func(tx pgx.Tx) error {
		if p, err = r.read(ctx, tx, request.ID); errors.Is(err, ErrNotFound) {
			if _, err := tx.Exec(ctx, oneByOne); err != nil {
				return err
			}
			statement, args := r.matched(r.sql("begin"), request, request.ID, request.Namespace, string(request.Action), request.Reason, request.RequestedBy,
				string(filter), request.Rate, request.Canary, request.AbortAt, limit(request.Limit))
			if _, err := tx.Exec(ctx, statement, args...); err != nil {
				return err
			}
			p, err = r.read(ctx, tx, request.ID)
		}
		if err == nil {
			err = checkNamespace(request.ID, p.Namespace, request.Namespace)
		}
		return err
	})
	return p, err
}

// Step puts back the next dead letters of a replay, limit at most, in one transaction, and returns how many had their turn. 0
// means that none may go now: all went, or the brake holds (see [Replays.Observe]).
//
// Each row is put back once, whatever else runs. It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Step(ctx context.Context, id uuid.UUID, limit int) (done int, err error) {
	err = r.transaction(ctx, fmt.Sprintf("step of replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		if _, err := r.read(ctx, tx, id); err != nil {
			return err
		}
		return tx.QueryRow(ctx, r.sql("step"), id, limit).Scan(&done)
	})
	return done, err
}

// Observe reads the outcomes of the events that were put back, and returns the progress. In the same transaction it stops a
// replay of which too many fail. When no outcome is new, the progress says what the replay waits for.
// It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Observe(ctx context.Context, id uuid.UUID) (p status.Replay, err error) {
	err = r.transaction(ctx, fmt.Sprintf("look for the outcomes of replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		if _, err := r.read(ctx, tx, id); err != nil {
			return err
		}
		var changed bool
		if err := tx.QueryRow(ctx, r.sql("observe"), id).Scan(&changed); err != nil {
			return err
		}
		if p, err = r.read(ctx, tx, id); err == nil && !changed {
			err = r.waits(ctx, tx, &p)
		}
		return err
	})
	return p, err
}

// Stop gives up what waits: it stays open. A batch that is under way is done first. What was put back stays so. A replay
// that is finished, or was stopped before, stays as it is.
// It fails for a reason of more than 1024 bytes, with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Stop(ctx context.Context, id uuid.UUID, reason string) (p status.Replay, err error) {
	if err := checkText("reason", reason); err != nil {
		return p, fmt.Errorf("stop replay %s: %w", id, err)
	}
	err = r.transaction(ctx, fmt.Sprintf("stop replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		if _, err := r.read(ctx, tx, id); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, r.sql("stop"), id, reason); err != nil {
			return err
		}
		p, err = r.read(ctx, tx, id)
		return err
	})
	return p, err
}

// Progress returns how far a replay is, as its last [Replays.Observe] left it, and what it waits for.
// It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Progress(ctx context.Context, id uuid.UUID) (p status.Replay, err error) {
	err = r.transaction(ctx, fmt.Sprintf("read replay %s", id), pgx.ReadOnly, func(tx pgx.Tx) error {
		if p, err = r.read(ctx, tx, id); err == nil {
			err = r.waits(ctx, tx, &p)
		}
		return err
	})
	return p, err
}

// ErrNotFound is the error for an id that no operation has.
var ErrNotFound = errors.New("there is no operation of this id; `dispatcher dead operations` lists them")

// ErrNamespace is the error for an operation of another namespace than that of [Options], or of the request.
var ErrNamespace = errors.New("the operation is of another namespace")

// oneByOne has the planner look up each dead letter of a set, and its event, by an index, even when the tables were never
// analyzed: a set costs what its size says. The planner is free in how it finds the dead letters of the filter.
const oneByOne = `select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// lookups keeps the planner to indexes for the rest of a transaction.
const lookups = `select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

// tries is how often a transaction is tried that lost to another one.
const tries = 3

// transaction runs do at READ COMMITTED, which the statements are made for: each sees what was committed before it.
// The commit waits for the disk as the session does. do begins with empty results.
func (r *Replays) transaction(ctx context.Context, what string, mode pgx.TxAccessMode, do func(pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode}, do)
		var pg *pgconn.PgError
		if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrNamespace) {
			return err
		}
		remedy := ""
		if errors.As(err, &pg) {
			switch pg.Code {
			case "40001", "40P01":
				if try < tries {
					continue
				}
			case "42501":
				remedy = "; have the owner run what `dispatcher migrate grants --for replay` prints"
			case "42P01", "42703", "3F000", "42883":
				remedy = "; run `dispatcher migrate up`"
			}
		}
		return fmt.Errorf("%s in schema %q: %w%s", what, r.schema, err, remedy)
	}
}
