// Package pgreader is the [deadletters.Source] on PostgreSQL. It connects for each request, reads in a
// read-only transaction, and bounds each statement in time and rows.
package pgreader

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

// DefaultTimeout bounds a statement.
const DefaultTimeout = 30 * time.Second

const (
	// groupsCap is the most dead letters that are counted of all groups, and samplePages the most pages of the table that are read to
	// say how many more there are.
	groupsCap   = 100_000
	samplePages = 4000
)

// Options say whose dead letters are read.
type Options struct {
	// Schema has the tables. Defaults to outbox.
	Schema string
	// Namespace is the outbox namespace, and Topics those of it; none means all.
	Namespace string
	Topics    []string
	// Copies are more topics in which copies of events are looked for. Dispatchers that run name theirs.
	Copies []string
	// Timeout bounds each statement. Defaults to DefaultTimeout.
	Timeout time.Duration
}

// Reader reads the tables.
type Reader struct {
	connect   func(context.Context) (*pgx.Conn, error)
	namespace string
	topics    []string
	copies    []string
	timeout   time.Duration
	pages     int
	sql       func(name string) string // a statement
}

//go:embed queries.sql
var files embed.FS

// New returns a Reader. connect makes a connection for one request, which closes it.
func New(connect func(context.Context) (*pgx.Conn, error), o Options) *Reader {
	if o.Schema == "" {
		o.Schema = "outbox"
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return &Reader{connect: connect, namespace: o.Namespace, topics: o.Topics, copies: o.Copies, timeout: o.Timeout, pages: samplePages, sql: sqlfile.Reader(files, o.Schema)}
}

// read runs do in a transaction that only reads.
func (r *Reader) read(ctx context.Context, what string, do func(pgx.Tx) error) error {
	conn, err := r.connect(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		limit := strconv.FormatInt(r.timeout.Milliseconds(), 10)
		// To compile the count of a million dead letters takes longer than to count them.
		if _, err := tx.Exec(ctx, "select set_config('statement_timeout', $1, true), set_config('jit', 'off', true)", limit); err != nil {
			return err
		}
		return do(tx)
	})
	if errors.Is(err, deadletters.ErrNotFound) || errors.Is(err, deadletters.ErrInvalidRequest) {
		return err // it names the request
	}
	if err != nil {
		return fmt.Errorf("%s: %w%s", what, err, remedy(err, r.timeout))
	}
	return nil
}

// remedy returns what to do about an error of the database.
func remedy(err error, timeout time.Duration) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	switch pg.Code {
	case "57014":
		return fmt.Sprintf("; a request may take %s: narrow it by topic, group or time", timeout)
	case "42501":
		if errors.Is(err, errRow) {
			return "; use a login that may select on outbox_events, such as the dispatcher's; `dead show` shows a replay login what the dead letter says"
		}
		return "; have the owner run what `dispatcher migrate grants` prints"
	case "42P01", "42703", "3F000":
		return "; the schema is missing, or older than this command: run `dispatcher migrate up`"
	}
	return ""
}

// related reads the original and the copies of an event, and returns the topics of which the event may be: all, where it, its original
// or one of its copies is of the reader's, since they have one content.
func (r *Reader) related(ctx context.Context, tx pgx.Tx, id string, history *deadletters.History) (topics []string, err error) {
	type found struct {
		IsOriginal bool
		deadletters.Related
		Ours bool
	}
	rows, err := tx.Query(ctx, r.sql("copies"), id, r.namespace, r.topics, r.copies)
	if err != nil {
		return nil, ofRow(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[found])
	if !slices.ContainsFunc(all, func(f found) bool { return f.Ours }) {
		return r.topics, ofRow(err)
	}
	for _, f := range all {
		if f.IsOriginal {
			history.Original = &f.Related
		} else {
			history.Copies = append(history.Copies, f.Related)
		}
	}
	return nil, nil
}

// where is the condition of a filter, after the arguments that the statement has already.
func (r *Reader) where(statement string, f deadletters.Filter, args ...any) (string, []any) {
	condition, args := f.Where(r.namespace, r.topics, args...)
	return replace(r.sql(statement), condition), args
}

// replace puts the condition into a statement, which runs as it is in psql too.
func replace(sql, condition string) string {
	return strings.ReplaceAll(sql, "/* filter */ true", condition)
}
