// Package postgressink inserts events into a table of a PostgreSQL database, effectively once: the event's
// id is the table's primary key. It is an inbox that consumers read with SQL.
//
// dispatcher/sink/postgres.md has the settings, guarantees, outcomes and how to secure it.
package postgressink

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Table is the statement that makes the table, by its default name. Whoever owns the database runs it:
// the sink never does. More columns do no harm if they have defaults.
//
//go:embed inbox.sql
var Table string

//go:embed insert.sql
var insertSQL string

// batchSize is what one Deliver takes: one statement.
const batchSize = 500

// connections is how many inserts run at once; further deliveries wait for one of them.
const connections = 8

// name is how the server's pg_stat_activity knows the connections: outbox-dispatcher/inbox.
const name = "inbox"

type sink struct {
	cfg    spec.PostgresSink
	insert string
	pool   *pgxpool.Pool
	turn   chan struct{} // a place for each connection
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. It fails when cfg contradicts itself; files and the server are first looked
// at by Probe and Deliver, so that what is wrong with them can heal. route must be nil: where an event
// goes is one table.
func New(cfg spec.PostgresSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	if route != nil {
		return nil, errors.New("postgres sink: routes do not apply to it, because all events go to one table; remove them, or run a dispatcher for each table")
	}
	return base.Made(build(cfg))
}

func build(cfg spec.PostgresSink) (*sink, error) {
	cfg.ApplyDefaults()
	schema, table, _ := strings.Cut(cfg.Table, ".")
	s := &sink{cfg: cfg, turn: make(chan struct{}, connections), insert: fmt.Sprintf(insertSQL, pgx.Identifier{schema, table}.Sanitize())}
	var err error
	if s.pool, err = database.PoolOf(context.Background(), cfg.Database(), name, connections); err != nil {
		return nil, fmt.Errorf("postgres sink: %s", fields.Replace(err.Error()))
	}
	return s, nil
}

// BatchSize is 500.
func (*sink) BatchSize() int { return batchSize }

// Deliver inserts the batch in one transaction. An event that is there already is confirmed. When one of
// the events is to blame for a failure, the others are inserted without it.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	defer reason.Classify("postgres", &errs)
	if ctx.Err() != nil {
		return slices.Repeat([]error{s.interrupted(ctx)}, len(batch))
	}
	select { // else a delivery that waits for the others' connections would report the server as unreachable
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return slices.Repeat([]error{s.interrupted(ctx)}, len(batch))
	}
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout.D())
	defer cancel()
	conn, err := s.pool.Acquire(limited)
	if err != nil {
		return slices.Repeat([]error{s.unreachable(ctx, err)}, len(batch))
	}
	defer conn.Release()
	return s.deliver(ctx, limited, conn, batch, make([]error, 0, len(batch)))
}

// deliver adds the batch's outcomes to errs. A batch that fails for one of its events is halved until
// that one is alone.
func (s *sink) deliver(ctx, limited context.Context, conn *pgxpool.Conn, batch []*dispatcher.Event, errs []error) []error {
	_, err := conn.Exec(limited, s.insert, columns(batch)...)
	if half := len(batch) / 2; half > 0 && isOfOneEvent(err) && limited.Err() == nil {
		errs = s.deliver(ctx, limited, conn, batch[:half], errs)
		return s.deliver(ctx, limited, conn, batch[half:], errs)
	}
	return append(errs, slices.Repeat([]error{s.outcome(ctx, err)}, len(batch))...)
}

// columns are the statement's parameters: one array for each column, of types that every mode of pgx can write.
func columns(batch []*dispatcher.Event) []any {
	n := len(batch)
	ids, tenants := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	text := func(field func(*dispatcher.Event) string) []string {
		values := make([]string, n)
		for i, e := range batch {
			values[i] = field(e)
		}
		return values
	}
	sequences, numbers, tokens, created := make([]int64, n), make([]int64, n), make([]int64, n), make([]time.Time, n)
	for i, e := range batch {
		ids[i], tenants[i] = pgtype.UUID{Bytes: e.ID, Valid: true}, pgtype.UUID{Bytes: e.TenantID.UUID, Valid: e.TenantID.Valid}
		sequences[i], numbers[i], tokens[i], created[i] = e.Seq, e.AggregateSequence, e.LeaseNumber, e.CreatedAt
	}
	return []any{
		ids,
		text(func(e *dispatcher.Event) string { return e.Namespace }),
		text(func(e *dispatcher.Event) string { return e.Topic }),
		text(func(e *dispatcher.Event) string { return e.EventType }),
		text(func(e *dispatcher.Event) string { return e.AggregateType }),
		text(func(e *dispatcher.Event) string { return e.AggregateID }),
		text((*dispatcher.Event).Key),
		tenants,
		text(func(e *dispatcher.Event) string { return e.DedupeKey }),
		sequences,
		numbers,
		tokens,
		text(func(e *dispatcher.Event) string {
			headers, _ := json.Marshal(e.Headers) // strings can always be written
			return string(headers)
		}),
		text(func(e *dispatcher.Event) string { return string(e.Payload) }),
		created,
	}
}

// Probe logs in on a connection of its own, to a server that takes writes, and has it plan the insert: the
// table, its columns, its primary key and the rights must be there.
func (s *sink) Probe(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout.D())
	defer cancel()
	conn, err := database.Connect(limited, s.cfg.Database(), name)
	if err != nil {
		return s.unreachable(ctx, err)
	}
	defer conn.Close(limited)
	_, err = conn.Exec(limited, "explain "+s.insert, columns(nil)...)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg):
		return dispatcher.Unavailable(s.refused(pg))
	default:
		return s.unreachable(ctx, err)
	}
}

// Close ends the connections. Nothing is in flight then: Deliver waits for its responses.
func (s *sink) Close(context.Context) error {
	s.pool.Close()
	return nil
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. The columns are the headers.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	return draft.Message{To: "table " + s.cfg.Table, At: where(s.cfg), Key: e.Key(), Body: e.Payload, Headers: e.Headers}, nil
}

// where says which database a configuration means, without its login: a file stands for what it holds.
func where(cfg spec.PostgresSink) string {
	if cfg.DSNFile != "" {
		return "the database of " + cfg.DSNFile
	}
	if parsed, err := pgconn.ParseConfig(cfg.DSN); err == nil {
		return fmt.Sprintf("database %s of %s", parsed.Database, parsed.Host)
	}
	return "the database of dsn"
}
