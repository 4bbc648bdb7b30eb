package migrations

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// OverviewSchema is where the view of Overview's producers is: its contract says so. A database has one.
const OverviewSchema = "outbox"

// overviewView is that view, and what its migrators lock: the schema may be an outbox's too.
const overviewView = OverviewSchema + ".events"

//go:embed overview/overview.sql
var overviewSQL string

// Overview says which events the view outbox.events is about.
type Overview struct {
	// Namespace of the events. 1 to 255 characters, no quote, backslash, dollar sign or control character.
	Namespace string
}

// UpOverview makes the view outbox.events, on which the INSERT of a producer of Overview's table enqueues, over the
// outbox in the schema, which [Up] has made. It does nothing, and returns false, where that is there with the same
// settings. With others it replaces it, and whoever may use the view before may do so after. It leaves alone a table of
// that name, and a view that is not its own or serves the outbox of another schema.
// It fails for settings that are not valid, and when the database does.
func UpOverview(ctx context.Context, conn *pgx.Conn, schema string, o Overview) (installed bool, err error) {
	if err := errors.Join(checkSchemaName(schema), checkLiteral("namespace", o.Namespace)); err != nil {
		return false, fmt.Errorf("install Overview's view: %w", err)
	}
	err = patient.retry(ctx, conn, overviewView, func() error {
		return OnTable(overviewView, true, pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			installed, err = installOverview(ctx, tx, schema, o)
			return err
		}))
	})
	if err != nil {
		return false, fmt.Errorf("install Overview's view over schema %q: %w", schema, err)
	}
	return installed, nil
}

func installOverview(ctx context.Context, tx pgx.Tx, schema string, o Overview) (bool, error) {
	if err := lockMigrators(ctx, tx, "pg_try_advisory_xact_lock", overviewView); err != nil {
		return false, err
	}
	var kind, mark string
	const look = `select coalesce(min(c.relkind::text), ''), coalesce(min(obj_description(c.oid, 'pg_class')), '')
		from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = 'events'`
	if err := tx.QueryRow(ctx, look, OverviewSchema).Scan(&kind, &mark); err != nil {
		return false, err
	}
	const begins = "Overview's outbox over schema "
	text := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{namespace}", o.Namespace).Replace(overviewSQL)
	sum := sha256.Sum256([]byte(text))
	wanted := fmt.Sprintf("%s%s. Installed by dispatcher migrate up, checksum %s.", begins, schema, hex.EncodeToString(sum[:]))
	switch {
	case mark == wanted:
		return false, nil
	case kind == "r" || kind == "p":
		return false, errors.New("outbox.events is a table, Overview's own; rename it (alter table outbox.events rename to events_before), and migrate again: its rows stay there")
	case kind != "" && !strings.HasPrefix(mark, begins):
		return false, errors.New("outbox.events exists, and dispatcher migrate up did not make it; drop or rename it, and migrate again")
	case kind != "" && !strings.HasPrefix(mark, begins+schema+"."):
		return false, fmt.Errorf("it serves another schema of this database (%.90s); leave it to that, or drop view outbox.events first", mark)
	}
	var exists bool // "if not exists" would need the right to create one
	if err := tx.QueryRow(ctx, `select exists (select from pg_namespace where nspname = $1)`, OverviewSchema).Scan(&exists); err != nil {
		return false, err
	}
	if !exists {
		if _, err := tx.Exec(ctx, "create schema "+OverviewSchema); err != nil {
			return false, fmt.Errorf("%w; create the schema as the database's owner, owned by this role", err)
		}
	}
	for _, sql := range []string{
		"set local client_min_messages = warning", fmt.Sprintf("set local lock_timeout = %d", lockTimeout.Milliseconds()), text,
		"comment on view outbox.events is '" + strings.ReplaceAll(wanted, "'", "''") + "'",
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return false, err
		}
	}
	return true, nil
}
