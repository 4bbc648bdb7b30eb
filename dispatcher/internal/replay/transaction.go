package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
