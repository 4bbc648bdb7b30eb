package migrations

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// M10Schema is where the functions of M10 are: its contract says so. A database has one.
const M10Schema = "m10_recovery"

// m10Functions are those that M10's workers and producers call, each with one signature.
var m10Functions = []string{"claim_outbox_events", "complete_outbox_event", "publish_outbox", "acquire_lock", "extend_lock", "release_lock"}

//go:embed m10/m10.sql
var m10SQL string

// M10 configures the M10 outbox contract: SQL functions in the schema m10_recovery (claim_outbox_events, publish_outbox and
// others) that existing workers and producers call. See m10/README.md.
type M10 struct {
	// Namespace and Topic of the events: what publish_outbox gives them, and what claim_outbox_events
	// claims. 1 to 255 characters each, no quote, backslash, dollar sign or control character.
	Namespace, Topic string
	// Upsert lets publish_outbox replace the payload of an event of the same aggregate and type that no worker
	// has claimed yet. Defaults to false: each call adds an event.
	Upsert bool
}

// literal is what can stand in the text of a function as it is.
var literal = regexp.MustCompile(`^[^'\\$[:cntrl:]]{1,255}$`)

func checkLiteral(what, name string) error {
	if !literal.MatchString(name) {
		return fmt.Errorf("the %s %.70q cannot be used; give 1 to 255 characters without quotes, backslashes, dollar signs and control characters", what, name)
	}
	return nil
}

func (m M10) check() error {
	return errors.Join(checkLiteral("namespace", m.Namespace), checkLiteral("topic", m.Topic))
}

// sql is the text of the file for one outbox.
func (m M10) sql(schema string) string {
	return strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{namespace}", m.Namespace, "{topic}", m.Topic,
		"{upsert}", strconv.FormatBool(m.Upsert)).Replace(m10SQL)
}

// UpM10 installs what M10's workers and producers call, over the outbox in the schema, which [Up] has made. It does
// nothing, and returns false, where that is there with the same settings. With other settings it replaces it: whoever
// may call a function before may do so after. It fails, and changes nothing, when m10_recovery.outbox is a table, was not
// made by UpM10, or serves the outbox of another schema; for settings that are not valid; and when the database does.
func UpM10(ctx context.Context, conn *pgx.Conn, schema string, m M10) (installed bool, err error) {
	if err := errors.Join(checkSchemaName(schema), m.check()); err != nil {
		return false, fmt.Errorf("install M10: %w", err)
	}
	err = patient.retry(ctx, conn, M10Schema, func() error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			installed, err = installM10(ctx, tx, schema, m)
			return err
		})
	})
	if err != nil {
		return false, fmt.Errorf("install M10 over schema %q: %w", schema, err)
	}
	return installed, nil
}

func installM10(ctx context.Context, tx pgx.Tx, schema string, m M10) (bool, error) {
	if err := lockMigrators(ctx, tx, "pg_try_advisory_xact_lock", M10Schema); err != nil {
		return false, err
	}
	there, err := findM10(ctx, tx)
	if err != nil {
		return false, err
	}
	text := m.sql(schema)
	sum := sha256.Sum256([]byte(text))
	mark := fmt.Sprintf("The M10 outbox over schema %s. Installed by dispatcher migrate up, checksum %s.", schema, hex.EncodeToString(sum[:]))
	switch {
	case there.outbox == "r" || there.outbox == "p":
		return false, errors.New("m10_recovery.outbox is a table, M10's own; rename it (alter table m10_recovery.outbox rename to outbox_before), and migrate again: its rows stay there")
	case there.outbox != "" && !strings.HasPrefix(there.mark, "The M10 outbox over schema "):
		return false, errors.New("m10_recovery.outbox exists, and dispatcher migrate up did not make it; drop or rename it, and migrate again")
	case there.outbox != "" && !strings.HasPrefix(there.mark, "The M10 outbox over schema "+schema+"."):
		return false, fmt.Errorf("it serves another schema of this database (%.90s); leave M10 to that, or drop view m10_recovery.outbox first", there.mark)
	case there.mark == mark && there.signatures == len(m10Functions):
		return false, nil
	}
	if !there.schemaExists {
		if _, err := tx.Exec(ctx, "create schema "+M10Schema); err != nil {
			return false, fmt.Errorf("%w; create the schema as the database's owner, owned by this role", err)
		}
	}
	return true, replaceM10(ctx, tx, text, mark)
}

// m10State is what a database has of M10.
type m10State struct {
	schemaExists bool
	// outbox is the kind of m10_recovery.outbox as in pg_class, v for ours, and mark its comment. "" for none.
	outbox, mark string
	// signatures is how many functions have the names, of any signature.
	signatures int
}

func findM10(ctx context.Context, tx pgx.Tx) (s m10State, err error) {
	const look = `select count(distinct n.oid) > 0, coalesce(min(c.relkind::text), ''), coalesce(min(obj_description(c.oid, 'pg_class')), ''),
			(select count(*) from pg_proc as p join pg_namespace as s on s.oid = p.pronamespace where s.nspname = $1 and p.proname = any ($2::text[]))
		from pg_namespace as n
		left join pg_class as c on c.relnamespace = n.oid and c.relname = 'outbox'
		where n.nspname = $1`
	err = tx.QueryRow(ctx, look, M10Schema, m10Functions).Scan(&s.schemaExists, &s.outbox, &s.mark, &s.signatures)
	return s, err
}

// replaceM10 drops the functions, with every signature that they have, and makes them again: one each.
func replaceM10(ctx context.Context, tx pgx.Tx, text, mark string) error {
	const settings = `set local client_min_messages = warning; set local check_function_bodies = on`
	if _, err := tx.Exec(ctx, fmt.Sprintf(`%s; set local lock_timeout = %d`, settings, lockTimeout.Milliseconds())); err != nil {
		return err
	}
	before, err := functionRights(ctx, tx, M10Schema)
	if err != nil {
		return err
	}
	const drops = `select 'drop function ' || p.oid::regprocedure from pg_proc as p
		where p.pronamespace = $1::text::regnamespace and p.proname = any ($2::text[])`
	rows, err := tx.Query(ctx, drops, M10Schema, m10Functions)
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, sql := range append(statements, text, "comment on view m10_recovery.outbox is '"+mark+"'") {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := restoreRights(ctx, tx, M10Schema, before); err != nil {
		return fmt.Errorf("keep the rights on functions: %w", err)
	}
	return nil
}

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
