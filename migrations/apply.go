package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Transact runs work in a transaction, as the only migrator of the schema at that time. It is for what locks a table that
// producers write to: it gives up a lock that it does not get within 2 seconds, since others queue behind it, and
// runs work again after a pause, for 5 minutes or until ctx ends. It waits for another migrator for 25 minutes.
// It fails for a name that cannot be a schema's, when it does not get the lock in that time, and when work does.
func Transact(ctx context.Context, conn *pgx.Conn, schema string, work func(pgx.Tx) error) error {
	if err := checkSchemaName(schema); err != nil {
		return err
	}
	return patient.transact(ctx, conn, schema, work)
}

// transact is Transact with this wait.
func (w lockWait) transact(ctx context.Context, conn *pgx.Conn, schema string, work func(pgx.Tx) error) error {
	return w.retry(ctx, conn, schema, func() error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := lockMigrators(ctx, tx, "pg_try_advisory_xact_lock", schema); err != nil {
				return err
			}
			settings := fmt.Sprintf(`set local lock_timeout = %d; set local client_min_messages = warning`, w.timeout.Milliseconds())
			if _, err := tx.Exec(ctx, settings); err != nil {
				return err
			}
			return work(tx)
		})
	})
}

// step applies the first migration that is missing and returns it, or nil when another process did so.
func step(ctx context.Context, conn *pgx.Conn, schema string, all []migration, w lockWait) (done *Applied, finished bool, err error) {
	var next *migration
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		if next, err = findNext(ctx, tx, schema, all, w); err != nil || next == nil || !next.transaction {
			return err
		}
		done, err = apply(ctx, tx, schema, *next)
		return err
	})
	if err != nil || next == nil || next.transaction {
		return done, next == nil, err
	}
	done, err = applyOutside(ctx, conn, schema, *next)
	return done, false, err
}

// migrators is the lock that lets one migrator of a schema work at a time.
const migrators = `hashtextextended('outbox-operator migrations ' || $1, 0)`

// lockMigrators gets the lock, by one of PostgreSQL's functions that do not wait. It returns errBusy when another has it.
func lockMigrators(ctx context.Context, db querier, function, schema string) error {
	var free bool
	if err := db.QueryRow(ctx, `select `+function+`(`+migrators+`)`, schema).Scan(&free); err != nil {
		return err
	}
	if !free {
		return errBusy
	}
	return nil
}

// findNext locks out other migrators until the transaction ends, so that the second one sees all that the first
// did.
func findNext(ctx context.Context, tx pgx.Tx, schema string, all []migration, w lockWait) (*migration, error) {
	if err := lockMigrators(ctx, tx, "pg_try_advisory_xact_lock", schema); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(`set local lock_timeout = %d`, w.timeout.Milliseconds())); err != nil {
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
	return &all[len(applied)], nil
}

// apply runs a migration in its transaction. Whoever may execute a function of the schema before it may do so
// after it, also where the migration drops the function and creates it with other arguments.
func apply(ctx context.Context, tx pgx.Tx, schema string, m migration) (*Applied, error) {
	before, err := functionRights(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, m.sql); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42P07" && m.version == 1 {
			return nil, fmt.Errorf("%s: %w: the schema was made without a record of its migrations, as by psql; drop it (drop schema %s cascade) if no event in it is needed, or name another schema, and migrate again",
				m.name, err, pgx.Identifier{schema}.Sanitize())
		}
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := restoreRights(ctx, tx, schema, before); err != nil {
		return nil, fmt.Errorf("%s: keep the rights on functions: %w", m.name, err)
	}
	return record(ctx, tx, m)
}

func record(ctx context.Context, tx pgx.Tx, m migration) (*Applied, error) {
	done := Applied{Version: m.version, Name: m.name, Checksum: m.checksum, OldestReader: m.oldestReader}
	const record = `insert into outbox_migrations (version, name, checksum, oldest_reader)
		values ($1, $2, $3, $4) returning applied_at`
	row := tx.QueryRow(ctx, record, done.Version, done.Name, done.Checksum, done.OldestReader)
	if err := row.Scan(&done.AppliedAt); err != nil {
		return nil, fmt.Errorf("record %s: %w", m.name, err)
	}
	return &done, nil
}

// createsIndex finds the name of the index that a statement creates.
var createsIndex = regexp.MustCompile(`(?i)create\s+(?:unique\s+)?index\s+concurrently\s+if\s+not\s+exists\s+"?([a-z0-9_]+)"?`)

// applyOutside runs a migration of one statement that PostgreSQL takes only outside a transaction, and records
// it after that: it may run twice, so it says "if not exists". What a broken try has left of an index
// is dropped first, or that would be taken for the index.
//
// Its lock is one of the session, which ends with the connection at the latest. Such a statement waits for
// older transactions for as long as they last, without a lock that producers need: it has no lock timeout.
func applyOutside(ctx context.Context, conn *pgx.Conn, schema string, m migration) (_ *Applied, err error) {
	if err := lockMigrators(ctx, conn, "pg_try_advisory_lock", schema); err != nil {
		return nil, err
	}
	path := pgx.Identifier{schema}.Sanitize() + ", pg_temp"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, unlockErr := conn.Exec(ctx, `select pg_advisory_unlock(`+migrators+`)`, schema)
		_, resetErr := conn.Exec(ctx, `reset search_path; reset lock_timeout`)
		err = errors.Join(err, unlockErr, resetErr)
	}()
	if applied, err := readApplied(ctx, conn, schema); err != nil || len(applied) != m.version-1 {
		return nil, err // another process did it; the next step sees it
	}
	if _, err := conn.Exec(ctx, `set search_path = `+path+`; set lock_timeout = 0`); err != nil {
		return nil, err
	}
	if index := createsIndex.FindStringSubmatch(m.sql); index != nil {
		var broken bool
		const look = `select exists (select from pg_index where indexrelid = to_regclass($1) and not indisvalid)`
		name := pgx.Identifier{schema, index[1]}.Sanitize()
		if err := conn.QueryRow(ctx, look, name).Scan(&broken); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		if broken {
			if _, err := conn.Exec(ctx, `drop index concurrently `+name); err != nil {
				return nil, fmt.Errorf("%s: drop what a broken try has left: %w", m.name, err)
			}
		}
	}
	if _, err := conn.Exec(ctx, m.sql); err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	var done *Applied
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		done, err = record(ctx, tx, m)
		return err
	})
	return done, err
}

// prepareSchema creates the schema and the table of migrations, when they are missing, and makes
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
