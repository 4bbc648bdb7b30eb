package migrations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Journal says how the journal of an outbox is set (CONTRACT C-61).
type Journal struct {
	// Enabled has each change of an event's row recorded. Defaults to off, which costs nothing.
	Enabled bool
	// Retention is how long a record is kept at least. Whole days are removed. Required.
	Retention time.Duration
}

// SetJournal turns the journal of the schema on or off, and reports whether that changed it. It needs the rights of an
// owner. What was recorded is kept for its retention, also when the journal is turned off.
//
// It locks the table of events, as a migration does: it gives up a lock that it does not get within 2 seconds, and tries
// again for 5 minutes or until ctx ends. From then on the journal has every change. Setting what is set already locks
// nothing. It fails for a retention that is not allowed, and when the database does.
func SetJournal(ctx context.Context, conn *pgx.Conn, schema string, j Journal) (changed bool, err error) {
	if err := checkSchemaName(schema); err != nil {
		return false, err
	}
	return setJournal(ctx, conn, schema, j, patient)
}

func setJournal(ctx context.Context, conn *pgx.Conn, schema string, j Journal, w lockWait) (changed bool, err error) {
	err = w.transact(ctx, conn, schema, func(tx pgx.Tx) error {
		set := `select ` + pgx.Identifier{schema, "outbox_journal_set"}.Sanitize() + `($1, $2::interval)`
		return tx.QueryRow(ctx, set, j.Enabled, j.Retention).Scan(&changed)
	})
	if err != nil {
		return false, fmt.Errorf("set the journal of schema %q: %w", schema, err)
	}
	return changed, nil
}

// UpTenants makes the index with which dispatchers give each tenant its turn (CONTRACT C-37), and reports whether it was
// missing. It needs the rights of an owner, and blocks no producer: the index is built concurrently. It may run twice,
// and at the same time as another process. An event that waits has one more index entry from then on. It fails when the
// database does.
func UpTenants(ctx context.Context, conn *pgx.Conn, schema string) (made bool, err error) {
	if err := checkSchemaName(schema); err != nil {
		return false, err
	}
	err = patient.retry(ctx, conn, schema, func() (err error) {
		if err := lockMigrators(ctx, conn, "pg_try_advisory_lock", schema); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if _, unlockErr := conn.Exec(ctx, `select pg_advisory_unlock(`+migrators+`)`, schema); err == nil {
				err = unlockErr
			}
		}()
		made, err = makeTenantIndex(ctx, conn, schema)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("make the index of tenants in schema %q: %w", schema, err)
	}
	return made, nil
}

func makeTenantIndex(ctx context.Context, conn *pgx.Conn, schema string) (made bool, err error) {
	name := pgx.Identifier{schema, "outbox_events_tenant"}.Sanitize()
	var valid *bool // nil when there is none
	if err := conn.QueryRow(ctx, `select (select indisvalid from pg_index where indexrelid = to_regclass($1))`, name).Scan(&valid); err != nil {
		return false, err
	}
	if valid != nil && *valid {
		return false, nil
	}
	if valid != nil { // what a broken try has left
		if _, err := conn.Exec(ctx, `drop index concurrently `+name); err != nil {
			return false, err
		}
	}
	// Its condition is that of outbox_events_live in other words, so that other claims do not take it.
	_, err = conn.Exec(ctx, `create index concurrently outbox_events_tenant on `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+`
		(namespace, topic, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'), next_attempt_at, id) where coalesce(live, false)`)
	return err == nil, err
}
