package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// DB is a pgx pool or connection. The login needs what `dispatcher migrate grants --for replay` prints.
type DB interface {
	// BeginTx starts a transaction, or returns an error.
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Options bind [Replays].
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Namespace is the outbox namespace whose replays may be read, run and stopped by their ids. Defaults to
	// empty: all.
	Namespace string
}

// Replays begins, runs and stops the replays of an outbox.
type Replays struct {
	db        DB
	schema    string
	namespace string
	sql       queries
}

// New returns the replays of an outbox. It does not connect.
func New(db DB, opts Options) *Replays {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	return &Replays{db: db, schema: opts.Schema, namespace: opts.Namespace, sql: load(opts.Schema)}
}

// ErrNotFound is the error for an id that no replay has.
var ErrNotFound = errors.New("there is no replay of this id; `dispatcher dead replay` prints the id when it begins")

// ErrNamespace is the error for a replay of another namespace than that of [Options], or of the request.
var ErrNamespace = errors.New("the replay is of another namespace")

// checkNamespace refuses a replay of another namespace.
func checkNamespace(id uuid.UUID, namespace, want string) error {
	if want == "" || namespace == want {
		return nil
	}
	return fmt.Errorf("replay %s: %w: of %q, and not of %q; name the file of a dispatcher of %[3]q", id, ErrNamespace, namespace, want)
}

// DryRun counts what [Replays.Begin] would choose, and changes nothing. Waiting is what would have its turn.
// It fails for a request that is not valid, and when the database does.
func (r *Replays) DryRun(ctx context.Context, request config.ReplayRequest) (p status.Replay, err error) {
	if request, err = complete(request); err != nil {
		return p, err
	}
	p = status.Replay{Namespace: request.Namespace, Action: string(request.Action), Rate: request.Rate}
	err = r.transaction(ctx, "dry run", pgx.ReadOnly, func(tx pgx.Tx) error {
		statement, args := r.matched(r.sql.dryRun, request, string(request.Action))
		if _, err := tx.Exec(ctx, oneByOne); err != nil {
			return err
		}
		var waiting, gone, notDead int64
		if err := tx.QueryRow(ctx, statement, args...).Scan(&waiting, &gone, &notDead); err != nil {
			return err
		}
		p.Matched, p.Waiting, p.Skipped = 0, 0, nil
		add(&p, StateWaiting, "", waiting)
		add(&p, StateSkipped, status.SkippedGone, gone)
		add(&p, StateSkipped, status.SkippedNotDead, notDead)
		return nil
	})
	return p, err
}

// matched is a statement about the dead letters of a request, and its arguments. The first of args is the action.
func (r *Replays) matched(statement string, request config.ReplayRequest, args ...any) (string, []any) {
	condition, args := deadletters.Filter(request.Filter).Where(request.Namespace, request.Topics, args...)
	if request.Action == config.ActionReplay {
		condition += "\n    and " + r.sql.last
	}
	return strings.Replace(statement, "/* dead_letters */", strings.Replace(r.sql.matched, "CONDITION", condition, 1), 1), args
}

// Begin fixes the set of a request, in one transaction, and puts none of it back yet. When a replay of its id exists, it
// returns the progress of that one, and changes nothing.
// It fails for a request that is not valid, and when the database does.
func (r *Replays) Begin(ctx context.Context, request config.ReplayRequest) (p status.Replay, err error) {
	if request, err = complete(request); err != nil {
		return p, err
	}
	filter, err := json.Marshal(struct {
		Topics []string `json:"topics,omitempty"`
		config.DeadLetterFilter
	}{request.Topics, request.Filter})
	if err != nil {
		return p, fmt.Errorf("write down the filter: %w", err)
	}
	ordering := "key"
	if request.AnyOrder || request.Action == config.ActionDiscard {
		ordering = "none"
	}
	err = r.transaction(ctx, fmt.Sprintf("begin %s %s", request.Action, request.ID), pgx.ReadWrite, func(tx pgx.Tx) error {
		added, err := tx.Exec(ctx, r.sql.add, request.ID, request.Namespace, string(request.Action), request.Reason, request.RequestedBy,
			string(filter), request.Rate, request.Canary, request.AbortAt, ordering)
		if err != nil {
			return err
		}
		if added.RowsAffected() > 0 {
			err = r.fix(ctx, tx, request)
		}
		if err == nil {
			p, err = r.read(ctx, tx, request.ID)
		}
		if err == nil {
			err = checkNamespace(request.ID, p.Namespace, request.Namespace)
		}
		return err
	})
	return p, err
}

// fix inserts the set of a request.
func (r *Replays) fix(ctx context.Context, tx pgx.Tx, request config.ReplayRequest) error {
	if _, err := tx.Exec(ctx, oneByOne); err != nil {
		return err
	}
	statement, args := r.matched(r.sql.begin, request, string(request.Action), request.ID)
	fixed, err := tx.Exec(ctx, statement, args...)
	if err != nil {
		return err
	}
	size := `update ` + pgx.Identifier{r.schema, "outbox_replays"}.Sanitize() + ` set matched = $2::bigint where id = $1::uuid`
	if _, err := tx.Exec(ctx, size, request.ID, fixed.RowsAffected()); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, r.sql.finish, request.ID) // nothing matched
	return err
}

// Progress returns how far a replay is, as its last [Replays.Observe] left it, and what it waits for.
// It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Progress(ctx context.Context, id uuid.UUID) (p status.Replay, err error) {
	err = r.transaction(ctx, fmt.Sprintf("read replay %s", id), pgx.ReadOnly, func(tx pgx.Tx) error {
		if p, err = r.read(ctx, tx, id); err == nil {
			p.WaitingFor, err = r.waits(ctx, tx, p)
		}
		return err
	})
	return p, err
}

func (r *Replays) read(ctx context.Context, tx pgx.Tx, id uuid.UUID) (status.Replay, error) {
	p := status.Replay{ID: id}
	rows, err := tx.Query(ctx, r.sql.progress, id)
	if err != nil {
		return p, err
	}
	var (
		finished   *time.Time
		state      State
		skipped    string
		matched, n int64
	)
	found, err := pgx.ForEachRow(rows, []any{&p.Action, &p.Namespace, &p.Rate, &p.BeganAt, &finished, &p.Stopped, &matched, &state, &skipped, &n}, func() error {
		add(&p, state, skipped, n)
		return nil
	})
	if err == nil && found.RowsAffected() == 0 {
		return p, ErrNotFound
	}
	if err == nil {
		err = checkNamespace(id, p.Namespace, r.namespace)
	}
	if finished != nil {
		p.FinishedAt = *finished
	}
	p.Unknown = max(0, matched-p.Matched)
	p.Matched += p.Unknown
	return p, err
}

// Stop skips what waits. A batch that is under way is done first. What was put back stays so. A
// replay that is finished, or was stopped before, stays as it is.
// It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Stop(ctx context.Context, id uuid.UUID, reason string) (p status.Replay, err error) {
	err = r.transaction(ctx, fmt.Sprintf("stop replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		if _, err := r.lock(ctx, tx, id); err != nil {
			return err
		}
		if p, err = r.read(ctx, tx, id); err != nil || p.Waiting == 0 {
			return err
		}
		p, err = r.giveUp(ctx, tx, id, reason)
		return err
	})
	return p, err
}

// giveUp skips what waits, in the caller's transaction.
func (r *Replays) giveUp(ctx context.Context, tx pgx.Tx, id uuid.UUID, reason string) (status.Replay, error) {
	stop := `update ` + pgx.Identifier{r.schema, "outbox_replays"}.Sanitize() + ` set stopped_reason = $2::text where id = $1::uuid`
	if _, err := tx.Exec(ctx, stop, id, reason); err != nil {
		return status.Replay{}, err
	}
	for _, sql := range []string{r.sql.giveUp, r.sql.finish} {
		if _, err := tx.Exec(ctx, sql, id); err != nil {
			return status.Replay{}, err
		}
	}
	return r.read(ctx, tx, id)
}

// replay is what a step must know.
type replay struct {
	namespace       string
	action          config.ReplayAction
	canary, abortAt int
	ordered         bool
}

// lock locks the replay until the transaction ends, so that its steps run one after the other.
func (r *Replays) lock(ctx context.Context, tx pgx.Tx, id uuid.UUID) (o replay, err error) {
	err = tx.QueryRow(ctx, r.sql.lock, id).Scan(&o.namespace, (*string)(&o.action), &o.canary, &o.abortAt, &o.ordered)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err == nil {
		err = checkNamespace(id, o.namespace, r.namespace)
	}
	return o, err
}

// oneByOne has the planner look up each dead letter of a set, and its event, by an index, even when the tables were never
// analyzed: a set costs what its size says. The planner is free in how it finds the dead letters of the filter.
const oneByOne = `select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// lookups keeps the planner to indexes for the rest of a transaction. The sets are new, so that it knows nothing of
// them, and each statement here has one good plan: from an index, row by row.
const lookups = `select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`

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
			case "42P01", "42703", "3F000":
				remedy = "; run `dispatcher migrate up`"
			}
		}
		return fmt.Errorf("%s in schema %q: %w%s", what, r.schema, err, remedy)
	}
}
