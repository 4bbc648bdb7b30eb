package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options says who consumes, and how. The zero value of a field means its default.
type Options struct {
	// ID names the consumer: its consumer_id in the database and in metrics. Required. Each consumer handles an event once;
	// all processes of one consumer have the same id, and it never changes, since with another one all is handled again.
	ID string
	// Schema has the tables of [SQL]. Defaults to the connection's search_path.
	Schema string
	// Wait bounds how long a delivery waits for another one of the same event that is being handled. Then it fails with
	// [ErrBusy]. Defaults to 5s.
	Wait time.Duration
	// Fence refuses a delivery when a later one of the event is known, with [ErrOlderToken]. It costs a commit for each
	// event. Defaults to false.
	Fence bool
	// Metrics counts what is handled. Defaults to none.
	Metrics *Metrics
	// Logger gets each failure. Defaults to slog.Default().
	Logger *slog.Logger
	// MaxBytes bounds the body of a request to [Consumer.HTTP]. Defaults to 16 MiB.
	MaxBytes int64
}

// Consumer handles events once, with a database DB and transactions Tx of one driver. It holds no connection and is safe
// for concurrent use: make one for the whole service.
type Consumer[DB, Tx any] struct {
	options              Options
	wait                 string
	record, token, newer string
	driver               driver[DB, Tx]
	invalid              error
}

// New returns a consumer for pgx.
func New(o Options) *Consumer[PGX, pgx.Tx] { return build(o, pgxDriver) }

// NewSQL returns a consumer for database/sql and any PostgreSQL driver.
func NewSQL(o Options) *Consumer[SQLDB, *sql.Tx] { return build(o, sqlDriver) }

func build[DB, Tx any](o Options, d driver[DB, Tx]) *Consumer[DB, Tx] {
	if o.Wait == 0 {
		o.Wait = 5 * time.Second
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	c := &Consumer[DB, Tx]{
		options: o, driver: d, wait: strconv.FormatInt(max(1, o.Wait.Milliseconds()), 10) + "ms",
		record: statement("record", o.Schema), token: statement("token", o.Schema), newer: statement("newer", o.Schema),
	}
	if o.ID == "" {
		c.invalid = invalid("a consumer needs an id; set Options.ID to a name that never changes")
	}
	o.Metrics.start(o.ID)
	return c
}

// Outcome is what became of a delivery.
type Outcome int

// Values of [Outcome].
const (
	// Failed: nothing was changed, and the error says why. Do not acknowledge the message.
	Failed Outcome = iota
	// Handled: the effect and its record are committed.
	Handled
	// AlreadyHandled: they were committed before, so nothing was done. Acknowledge the message.
	AlreadyHandled
	// OlderToken: a later delivery of the event is known, so this one was given up. The error is [ErrOlderToken].
	OlderToken
)

// String returns the outcome's name.
func (o Outcome) String() string {
	return [...]string{"Failed", "Handled", "AlreadyHandled", "OlderToken"}[o]
}

// Handle runs effect in a transaction that records the event first, and commits both or neither (RULE-010-012,
// CONTRACT C-80). When this consumer has handled the event before, effect is not run (RULE-010-002, -031). Of two
// deliveries of one event at the same time the second waits, up to Options.Wait.
//
// What effect writes through the transaction happens once. A call to another service in it may happen again, when the
// process crashes before the commit: give it [Event.IdempotencyKey].
//
// Every error is logged with its context and returned (RULE-010-032): leave the message unacknowledged, so that it comes
// again. A panic of effect is rolled back and propagates.
func (c *Consumer[DB, Tx]) Handle(ctx context.Context, db DB, e *Event, effect func(tx Tx) error) (outcome Outcome, err error) {
	if c.invalid != nil {
		return Failed, c.invalid
	}
	began, panicked := time.Now(), true
	defer func() {
		if panicked {
			outcome = Failed
		}
		c.options.Metrics.observe(c.options.ID, e, outcome, time.Since(began))
		if err != nil || panicked {
			c.logFailure(ctx, e, outcome, err)
		}
	}()
	if c.options.Fence && e.FencingToken > 0 {
		if err = c.announce(ctx, db, e); err != nil {
			panicked = false
			return Failed, c.failed(e, err)
		}
	}
	err = c.driver.begin(ctx, db, func(tx Tx) (err error) {
		outcome, err = c.Record(ctx, tx, e)
		if outcome != Handled {
			return err
		}
		return effect(tx)
	})
	panicked = false
	switch {
	case err == nil, outcome == OlderToken:
		return outcome, err
	default:
		return Failed, c.failed(e, err)
	}
}

// announce commits the delivery's token before its effect, so that every other delivery knows it at once.
func (c *Consumer[DB, Tx]) announce(ctx context.Context, db DB, e *Event) error {
	return c.driver.begin(ctx, db, func(tx Tx) error {
		_, err := c.driver.exec(ctx, tx, c.token, e.ID.String(), c.options.ID, e.FencingToken)
		return err
	})
}

// Record notes in the caller's transaction that the event is handled, for a service that handles several events in one
// transaction. Handled means that this consumer had not handled it: do the work in the same transaction. With
// AlreadyHandled do nothing. After an error, roll back. [Consumer.Handle] does this and more.
func (c *Consumer[DB, Tx]) Record(ctx context.Context, tx Tx, e *Event) (Outcome, error) {
	switch {
	case c.invalid != nil:
		return Failed, c.invalid
	case e.ID == [16]byte{}:
		return Failed, invalid("the event has no id; set ID to its tracking_id")
	}
	recorded, err := c.driver.count(ctx, tx, c.record, e.ID.String(), c.options.ID, e.FencingToken, c.wait)
	switch {
	case state(err) == "55P03":
		return Failed, fmt.Errorf("event %s: %w", e.ID, ErrBusy)
	case err != nil:
		return Failed, err
	case recorded == 0:
		return AlreadyHandled, nil
	case !c.options.Fence || e.FencingToken == 0:
		return Handled, nil
	}
	// In a statement of its own: the first one may have waited, and would not see what was committed meanwhile.
	newer, err := c.driver.count(ctx, tx, c.newer, e.ID.String(), c.options.ID, e.FencingToken)
	switch {
	case err != nil:
		return Failed, err
	case newer > 0:
		return OlderToken, fmt.Errorf("event %s: %w", e.ID, ErrOlderToken)
	}
	return Handled, nil
}

// failed names the object and the remedy; an effect's own error is wrapped as it is.
func (c *Consumer[DB, Tx]) failed(e *Event, err error) error {
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrInvalid) {
		return fmt.Errorf("consumer %s: %w", c.options.ID, err)
	}
	return fmt.Errorf("consumer %s: event %s: %w%s", c.options.ID, e.ID, err, remedy(err))
}

// logFailure never has the payload (CONTRACT C-73). A panic has no error; the one who recovers it logs the cause.
func (c *Consumer[DB, Tx]) logFailure(ctx context.Context, e *Event, outcome Outcome, err error) {
	level, message := slog.LevelError, "event failed; it will be delivered again"
	if outcome == OlderToken {
		level, message = slog.LevelWarn, "older delivery given up; a later one is known"
	}
	c.options.Logger.LogAttrs(ctx, level, message, append(c.context(e), slog.Any("error", err))...)
}

func (c *Consumer[DB, Tx]) context(e *Event) []slog.Attr {
	return []slog.Attr{
		slog.String("consumer_id", c.options.ID), slog.String("tracking_id", e.ID.String()), slog.String("namespace", e.Namespace),
		slog.String("topic", e.Topic), slog.String("event_type", e.EventType), slog.String("aggregate_id", e.AggregateID),
		slog.Int("attempt", e.Attempt), slog.Int64("fencing_token", e.FencingToken),
		slog.String("correlation_id", e.Header("correlation_id")), slog.String("traceparent", e.Header("traceparent")),
	}
}

var (
	// ErrInvalid is the error of a consumer, an event or a policy that cannot be used as it is.
	ErrInvalid = errors.New("invalid")
	// ErrBusy says that another delivery of the event was still being handled when Options.Wait ended. Its outcome is not
	// known yet: let the message come again.
	ErrBusy = errors.New("another delivery of the event is being handled; let the message come again")
	// ErrOlderToken says that a later delivery of the event is known, so this one is not handled. Only with Options.Fence.
	ErrOlderToken = errors.New("a later delivery of the event is known, with a higher fencing token; this one is given up, and needs nothing done")
)

// Refused is a failure that lies in the event itself: no later delivery of it as it is can succeed.
type Refused struct{ err error }

// Error implements error.
func (r *Refused) Error() string { return r.err.Error() }

// Unwrap returns the error that was refused.
func (r *Refused) Unwrap() error { return r.err }

// Refuse marks err as the event's own failure. [Consumer.HTTP] responds with 422, which the dispatcher counts against this event
// and never against the destination. The error is nil when err is.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &Refused{err}
}

// pause is a failure that names when to try again.
type pause struct {
	error
	after time.Duration
}

func (p *pause) Unwrap() error { return p.error }

// RetryAfter requests the next delivery no sooner than after d: [Consumer.HTTP] responds with 503 with Retry-After, which the
// dispatcher keeps up to an hour. The error is nil when err is.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &pause{err, d}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
