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
const Version = 1

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
// transaction. Two migrators do no harm: the second waits, and finds the work done. Up returns what
// it applied, also when a later migration fails. A schema that is newer than Version is left alone.
//
// It changes nothing when an applied migration differs from this binary's.
func Up(ctx context.Context, conn *pgx.Conn, schema string) ([]Applied, error) {
	all, err := load(schema)
	if err != nil {
		return nil, err
	}
	var applied []Applied
	for {
		var next *Applied
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			next, err = applyNext(ctx, tx, schema, all)
			return err
		})
		if err != nil {
			return applied, fmt.Errorf("migrate schema %q: %w", schema, err)
		}
		if next == nil {
			return applied, nil
		}
		applied = append(applied, *next)
	}
}

// Status tells where the schema stands. It only reads, with no more rights than a dispatcher has.
// When an applied migration differs from this binary's, it returns the state and an error.
func Status(ctx context.Context, conn *pgx.Conn, schema string) (State, error) {
	all, err := load(schema)
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

// applyNext applies the first migration that is missing and returns it, or nil when there is none.
// The advisory lock is held to the end of the transaction, so whoever comes second sees all that
// the first did.
func applyNext(ctx context.Context, tx pgx.Tx, schema string, all []migration) (*Applied, error) {
	const lock = `select pg_advisory_xact_lock(hashtextextended('outbox-operator migrations ' || $1, 0))`
	if _, err := tx.Exec(ctx, lock, schema); err != nil {
		return nil, err
	}
	if err := prepareSchema(ctx, tx, schema); err != nil {
		return nil, err
	}
	applied, err := readApplied(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	if err := checkUnedited(applied, all); err != nil {
		return nil, err
	}
	if len(applied) >= len(all) {
		return nil, nil
	}
	next := all[len(applied)]
	if _, err := tx.Exec(ctx, next.sql); err != nil {
		return nil, fmt.Errorf("%s: %w", next.name, err)
	}
	done := Applied{Version: next.version, Name: next.name, Checksum: next.checksum, OldestReader: next.oldestReader}
	const record = `insert into outbox_migrations (version, name, checksum, oldest_reader)
		values ($1, $2, $3, $4) returning applied_at`
	row := tx.QueryRow(ctx, record, done.Version, done.Name, done.Checksum, done.OldestReader)
	if err := row.Scan(&done.AppliedAt); err != nil {
		return nil, fmt.Errorf("record %s: %w", next.name, err)
	}
	return &done, nil
}

// prepareSchema makes the schema and the record of migrations, when they are missing, and makes
// unqualified names mean that schema until the transaction ends. pg_temp comes last: otherwise a
// caller's temporary table would come before ours in the functions that keep this path.
func prepareSchema(ctx context.Context, tx pgx.Tx, schema string) error {
	quoted := pgx.Identifier{schema}.Sanitize()
	var exists bool
	const look = `select exists (select from pg_namespace where nspname = $1)`
	if err := tx.QueryRow(ctx, look, schema).Scan(&exists); err != nil {
		return err
	}
	if !exists { // "create schema if not exists" would take the right to create one even when it does
		if _, err := tx.Exec(ctx, "create schema "+quoted); err != nil {
			return fmt.Errorf("%w; create the schema as the database's owner, owned by this role", err)
		}
	}
	_, err := tx.Exec(ctx, "set local client_min_messages = warning; set local search_path = "+quoted+`, pg_temp;
		create table if not exists outbox_migrations (
			version       integer     primary key,
			name          text        not null,
			checksum      text        not null,
			oldest_reader integer     not null,
			applied_at    timestamptz not null default now()
		)`)
	return err
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
	const look = `select exists (select from pg_tables where schemaname = $1 and tablename = 'outbox_migrations')`
	if err := db.QueryRow(ctx, look, schema).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	rows, err := db.Query(ctx, `select version, name, checksum, applied_at, oldest_reader from `+
		pgx.Identifier{schema, "outbox_migrations"}.Sanitize()+` order by version`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Applied])
}
