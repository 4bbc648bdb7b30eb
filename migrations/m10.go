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
	"github.com/jackc/pgx/v5/pgconn"
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
	return m10View.up(ctx, conn, schema, m.sql(schema))
}

// OverviewSchema is where the view of Overview's producers is: its contract says so. A database has one.
const OverviewSchema = "outbox"

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
	text := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{namespace}", o.Namespace).Replace(overviewSQL)
	return overviewView.up(ctx, conn, schema, text)
}

// view is a view over an outbox that an owner has installed, and the functions that come with it.
type view struct {
	// what is installed, for whom, and the beginning of its comment.
	what, owner, begins string
	schema, name        string
	// lock is what its migrators lock: the schema of Overview's view may be an outbox's too.
	lock string
	// functions have one signature each.
	functions []string
}

var (
	m10View      = view{"M10", "M10", "The M10 outbox over schema ", M10Schema, "outbox", M10Schema, m10Functions}
	overviewView = view{"Overview's view", "Overview", "Overview's outbox over schema ", OverviewSchema, "events", OverviewSchema + ".events", nil}
)

// up makes it of the text, or replaces it, and reports whether it did.
func (v view) up(ctx context.Context, conn *pgx.Conn, schema, text string) (installed bool, err error) {
	err = patient.retry(ctx, conn, v.lock, func() error {
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			installed, err = v.install(ctx, tx, schema, text)
			return err
		})
		if v.functions == nil { // else it waits for tables of theirs too
			err = OnTable(v.lock, true, err)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("install %s over schema %q: %w", v.what, schema, err)
	}
	return installed, nil
}

func (v view) install(ctx context.Context, tx pgx.Tx, schema, text string) (bool, error) {
	if err := lockMigrators(ctx, tx, "pg_try_advisory_xact_lock", v.lock); err != nil {
		return false, err
	}
	var schemaExists bool // "if not exists" would need the right to create one
	var kind, mark string // kind as in pg_class, mark its comment; empty for none
	var signatures int    // of functions with the names
	const look = `select count(distinct n.oid) > 0, coalesce(min(c.relkind::text), ''), coalesce(min(obj_description(c.oid, 'pg_class')), ''),
			(select count(*) from pg_proc as p join pg_namespace as s on s.oid = p.pronamespace where s.nspname = $1 and p.proname = any ($3::text[]))
		from pg_namespace as n
		left join pg_class as c on c.relnamespace = n.oid and c.relname = $2
		where n.nspname = $1`
	if err := tx.QueryRow(ctx, look, v.schema, v.name, v.functions).Scan(&schemaExists, &kind, &mark, &signatures); err != nil {
		return false, err
	}
	name, sum := v.schema+"."+v.name, sha256.Sum256([]byte(text))
	wanted := fmt.Sprintf("%s%s. Installed by dispatcher migrate up, checksum %s.", v.begins, schema, hex.EncodeToString(sum[:]))
	switch {
	case kind == "r" || kind == "p":
		return false, fmt.Errorf("%s is a table, %s's own; rename it (alter table %[1]s rename to %[3]s_before), and migrate again: its rows stay there", name, v.owner, v.name)
	case kind != "" && !strings.HasPrefix(mark, v.begins):
		return false, fmt.Errorf("%s exists, and dispatcher migrate up did not make it; drop or rename it, and migrate again", name)
	case kind != "" && !strings.HasPrefix(mark, v.begins+schema+"."):
		return false, fmt.Errorf("it serves another schema of this database (%.90s); leave it to that, or drop view %s first", mark, name)
	case mark == wanted && signatures == len(v.functions):
		return false, nil
	}
	if !schemaExists {
		if _, err := tx.Exec(ctx, "create schema "+v.schema); err != nil {
			return false, fmt.Errorf("%w; create the schema as the database's owner, owned by this role", err)
		}
	}
	comment := "comment on view " + name + " is '" + strings.ReplaceAll(wanted, "'", "''") + "'"
	return true, v.replace(ctx, tx, text, comment)
}

// replace drops the functions, and procedures and aggregates of their names, with every signature, and makes all again: one each.
func (v view) replace(ctx context.Context, tx pgx.Tx, statements ...string) error {
	const settings = `set local client_min_messages = warning; set local check_function_bodies = on`
	if _, err := tx.Exec(ctx, fmt.Sprintf(`%s; set local lock_timeout = %d`, settings, lockTimeout.Milliseconds())); err != nil {
		return err
	}
	before, err := functionRights(ctx, tx, v.schema)
	if err != nil {
		return err
	}
	const drops = `select 'drop routine ' || p.oid::regprocedure from pg_proc as p
		where p.pronamespace = $1::text::regnamespace and p.proname = any ($2::text[])`
	rows, err := tx.Query(ctx, drops, v.schema, v.functions)
	if err != nil {
		return err
	}
	dropped, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, sql := range append(dropped, statements...) {
		if _, err := tx.Exec(ctx, sql); err != nil {
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "2BP01" { // dependent_objects_still_exist
				return fmt.Errorf("%w: %s; drop what depends on it, and make it again after the migration", err, strings.ReplaceAll(pg.Detail, "\n", ", "))
			}
			return err
		}
	}
	if err := restoreRights(ctx, tx, v.schema, before); err != nil {
		return fmt.Errorf("keep the rights on functions: %w", err)
	}
	return nil
}
