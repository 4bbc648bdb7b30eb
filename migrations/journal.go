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
