// Package migrations creates and upgrades the outbox in a PostgreSQL schema of the user's choice.
//
// It needs the rights of an owner. A dispatcher and a producer need far less: see [Grants].
package migrations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Version is the number of the latest migration: the schema that this binary is made for.
const Version = 9

// Applied is one migration that the database has.
type Applied struct {
	Version int
	// Name is the migration's file name without its ending: "0001_outbox".
	Name string
	// Checksum is the SHA-256 of the migration's text, in hex.
	Checksum string
	// AppliedAt is the database's time.
	AppliedAt time.Time
	// OldestReader is the oldest Version whose binaries still work once this migration is applied,
	// so that a migration that only adds something does not stop the pods that run.
	OldestReader int
}

// State is where a schema stands.
type State struct {
	// Version is the latest migration applied, 0 when the schema holds no outbox.
	Version int
	// Applied are the migrations that the database has, in order.
	Applied []Applied
	// Pending are the names of the migrations that [Up] would apply, in order.
	Pending []string
}

// Up brings the schema to [Version], and creates it when it is missing. Each migration has its own
// transaction, but for a statement that can have none. Two migrators do no harm: the second waits, and
// finds the work done. Up returns what it applied, also when a later migration fails. A schema that is
// newer than Version is left alone.
//
// It changes nothing when an applied migration differs from this binary's.
//
// A migration never makes producers wait for long: it gives up a lock that it does not get within 2
// seconds, since others queue behind it, and tries again after a pause, for 5 minutes or until ctx ends. It waits for another
// migrator for 25 minutes. [ReportWaits] has what it waits for.
func Up(ctx context.Context, conn *pgx.Conn, schema string) ([]Applied, error) {
	all, err := load(files, schema)
	if err != nil {
		return nil, err
	}
	return up(ctx, conn, schema, all, patient)
}

func up(ctx context.Context, conn *pgx.Conn, schema string, all []migration, w lockWait) (applied []Applied, err error) {
	for {
		var done *Applied
		finished := false
		err := w.retry(ctx, conn, schema, func() (err error) {
			done, finished, err = step(ctx, conn, schema, all, w)
			return err
		})
		if err != nil {
			return applied, fmt.Errorf("migrate schema %q: %w", schema, err)
		}
		if finished {
			return applied, nil
		}
		if done != nil {
			applied = append(applied, *done)
		}
	}
}

// Status returns the schema's version and what is missing. It only reads, with no more rights than a dispatcher has.
// When an applied migration differs from this binary's, it returns the state and an error.
func Status(ctx context.Context, conn *pgx.Conn, schema string) (State, error) {
	all, err := load(files, schema)
	if err != nil {
		return State{}, err
	}
	var state State
	if state.Applied, err = readApplied(ctx, conn, schema); err != nil {
		return State{}, fmt.Errorf("read the migrations of schema %q: %w", schema, err)
	}
	state.Version = len(state.Applied)
	for _, m := range all[min(state.Version, len(all)):] {
		state.Pending = append(state.Pending, m.name)
	}
	if err := checkUnedited(state.Applied, all); err != nil {
		return state, fmt.Errorf("schema %q: %w", schema, err)
	}
	return state, nil
}

// Checksums are the checksums of this binary's migrations, as [Applied] has them, in order.
func Checksums() (sums []string) {
	all, err := load(files, "outbox")
	if err != nil {
		panic(err) // the files are in the binary
	}
	for _, m := range all {
		sums = append(sums, m.checksum)
	}
	return sums
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readApplied returns the migrations that the schema has, none when it holds no outbox. Versions
// have no gaps: each is applied after the one before it.
func readApplied(ctx context.Context, db querier, schema string) ([]Applied, error) {
	var exists bool
	const outboxExists = `select exists (select from pg_tables where schemaname = $1 and tablename = 'outbox_migrations')`
	if err := db.QueryRow(ctx, outboxExists, schema).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	rows, err := db.Query(ctx, `select version, name, checksum, applied_at, oldest_reader from `+
		pgx.Identifier{schema, "outbox_migrations"}.Sanitize()+` order by version`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Applied])
}
