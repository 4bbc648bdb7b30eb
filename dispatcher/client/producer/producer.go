package producer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Options says where and what a [Producer] enqueues. The zero value of a field means its default.
type Options struct {
	// Schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	Schema string
	// MaxPayloadBytes bounds an event's payload as JSON text (CONTRACT C-13). Defaults to 1 MiB.
	MaxPayloadBytes int
	// Namespace is given to events which have none. Defaults to none: each event needs its own.
	Namespace string
	// ObjectsOnly refuses a payload that is not a JSON object, such as a list, a text or null. Defaults to false.
	ObjectsOnly bool
}

// PGX is the part of pgx that a [Producer] made by [New] uses. Pass a pgx.Tx. A connection or a
// pool would do, but then nothing ties the event to the work that it reports; outbox.require_data refuses it.
type PGX interface {
	// Query runs a statement, or returns an error.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQL is the part of database/sql that a [Producer] made by [NewSQL] uses. Pass a *sql.Tx; see [PGX].
type SQL interface {
	// QueryContext runs a statement, or returns an error.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Producer enqueues events in transactions of type T, which is [PGX] or [SQL]. It holds no
// connection and is safe for concurrent use: make one for the whole service.
type Producer[T any] struct {
	schema          string
	maxPayloadBytes int
	namespace       string
	objectsOnly     bool
	driver          driver[T]
}

// driver is what differs between pgx and database/sql.
type driver[T any] struct {
	query func(ctx context.Context, tx T, statement string, args []any, n int, row func(i int) []any) error
	// array makes an argument of texts, where nil is a null. Drivers of database/sql understand a text alone.
	array func([]*string) any
}

// New returns a producer for pgx.
func New(o Options) *Producer[PGX] {
	return build(o, driver[PGX]{queryPGX, func(texts []*string) any { return texts }})
}

// NewSQL returns a producer for database/sql and any PostgreSQL driver.
func NewSQL(o Options) *Producer[SQL] {
	return build(o, driver[SQL]{querySQL, func(texts []*string) any { return arrayLiteral(texts) }})
}

func build[T any](o Options, d driver[T]) *Producer[T] {
	if o.Schema == "" {
		o.Schema = "outbox"
	}
	if o.MaxPayloadBytes == 0 {
		o.MaxPayloadBytes = 1 << 20
	}
	return &Producer[T]{schema: o.Schema, maxPayloadBytes: o.MaxPayloadBytes, namespace: o.Namespace, objectsOnly: o.ObjectsOnly, driver: d}
}

// Receipt is the result for one event.
type Receipt struct {
	// ID is the id of the row that stands in the outbox. With Enqueued false it is that of the
	// earlier event with the same dedupe key.
	ID uuid.UUID
	// Enqueued is false when the dedupe key was there before, so that no row was added (CONTRACT C-11).
	Enqueued bool
}

// Enqueue writes one event inside the caller's transaction (CONTRACT C-10).
//
// An error that is [ErrInvalid] was found before anything was sent: the transaction is still
// usable. Any other error is the database's: PostgreSQL has aborted the transaction, so roll back.
func (p *Producer[T]) Enqueue(ctx context.Context, tx T, event Event) (Receipt, error) {
	r, err := p.record(ctx, &event)
	if err != nil {
		return Receipt{}, err
	}
	if r.id == nil { // that of a batch is made by the database, which is cheaper there, and dearer here
		id, err := uuid.NewV7()
		if err != nil {
			return Receipt{}, fmt.Errorf("make an event id: %w", err)
		}
		text := id.String()
		r.id = &text
	}
	var receipt Receipt
	err = p.send(ctx, tx, "enqueue into", enqueueOne, r.arguments(), 1, func(int) []any { return []any{&receipt.ID, &receipt.Enqueued} })
	if err != nil {
		return Receipt{}, err
	}
	return receipt, nil
}

// EnqueueBatch writes events in their order and in one round trip, inside the caller's
// transaction. Receipt i is about events[i]. When one is invalid, none is written; errors are
// those of [Producer.Enqueue]. A batch may have 32 MiB.
func (p *Producer[T]) EnqueueBatch(ctx context.Context, tx T, events []Event) ([]Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	records := make([]record, len(events))
	size := 0
	for i := range events {
		var err error
		if records[i], err = p.record(ctx, &events[i]); err != nil {
			return nil, fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
		size += records[i].size()
	}
	if size > maxBatchBytes {
		return nil, invalid("batch", "has %d bytes, more than %d; enqueue it in parts", size, maxBatchBytes)
	}
	receipts := make([]Receipt, len(events))
	err := p.send(ctx, tx, "enqueue into", enqueueMany, batchArguments(records, p.driver.array), len(receipts), func(i int) []any {
		return []any{&receipts[i].ID, &receipts[i].Enqueued}
	})
	if err != nil {
		return nil, err
	}
	return receipts, nil
}

// maxBatchBytes keeps a batch far below what one value may hold, 1 GiB, and a statement short.
const maxBatchBytes = 32 << 20

// send runs a statement that returns n rows, and reads row i into what row returns.
func (p *Producer[T]) send(ctx context.Context, tx T, action, statement string, args []any, n int, row func(i int) []any) error {
	statement = fmt.Sprintf(statement, pgx.Identifier{p.schema}.Sanitize())
	if err := p.driver.query(ctx, tx, statement, args, n, row); err != nil {
		return fmt.Errorf("%s schema %s: %w%s", action, p.schema, err, remedy(err))
	}
	return nil
}

func queryPGX(ctx context.Context, tx PGX, statement string, args []any, n int, row func(i int) []any) error {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return scan(rows, n, row)
}

func querySQL(ctx context.Context, tx SQL, statement string, args []any, n int, row func(i int) []any) error {
	rows, err := tx.QueryContext(ctx, statement, args...) //nolint:rowserrcheck // scan checks it
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	return scan(rows, n, row)
}

func scan(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}, n int, row func(i int) []any) error {
	got := 0
	for ; rows.Next() && got < n; got++ {
		if err := rows.Scan(row(got)...); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("the function returned %d rows for %d events", got, n)
	}
	return nil
}

// remedy says what to do about the errors that a person meets when setting things up.
func remedy(err error) string {
	var state interface{ SQLState() string } // pgx's and lib/pq's errors have it
	if !errors.As(err, &state) {
		return ""
	}
	switch state.SQLState() {
	case "3F000", "42883":
		return "; run `dispatcher migrate up`, or correct Options.Schema"
	case "42501":
		return "; give this login the rights that `dispatcher migrate grants --for producer` prints"
	}
	return ""
}
