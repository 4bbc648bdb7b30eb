// Package copysink copies events to other topics of their namespace, in the database that they are in, each once: for several
// destinations of one event (CONTRACT C-19).
//
// dispatcher/sink/copy.md has the settings, guarantees and outcomes.
package copysink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// batchSize is what one Deliver takes: one statement.
const batchSize = 500

// errLost is of an event that another worker holds, or whose copies a call that was given up has made.
var errLost = errors.New("the lease was lost before the event was copied, so it was not copied under it; nothing is to be done: whoever holds it copies it")

// Sink copies. It delivers once it is bound.
type Sink struct {
	cfg    spec.Config
	topics []string
	store  *pgstore.Store
	wake   func(namespace string)
}

var _ dispatcher.Ordered = (*Sink)(nil)

// New returns a sink for cfg, whose sink is copy.
func New(cfg spec.Config) *Sink { return &Sink{cfg: cfg, topics: cfg.Sink.Copy.Topics} }

// Bind has the sink copy by the store that holds the leases of what is delivered, and wake dispatchers of the copies. It returns the
// topics that it copies to.
func (s *Sink) Bind(store *pgstore.Store, wake func(namespace string)) (topics []string) {
	s.store, s.wake = store, wake
	return s.topics
}

// BatchSize is 500.
func (*Sink) BatchSize() int { return batchSize }

// KeepsOrder implements [dispatcher.Ordered]: a statement copies all of its events, in their order, or none.
func (*Sink) KeepsOrder() bool { return true }

// Deliver copies the batch, and marks it delivered, in one transaction. When one of the events may be to blame for a failure, each is copied alone.
func (s *Sink) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	defer reason.Classify("copy", &errs)
	if s.store == nil {
		return slices.Repeat([]error{errors.New("the sink copy belongs to a dispatcher of package outbox; give it to outbox.New")}, len(batch))
	}
	limited, cancel := context.WithTimeout(ctx, s.cfg.Sink.Timeout.D())
	defer cancel()
	lost, err := s.copy(limited, batch)
	if len(batch) > 1 && err != nil && limited.Err() == nil && isOfOneEvent(err) {
		return dispatcher.InOrder(batch, func(_ int, e *dispatcher.Event) error {
			return s.Deliver(ctx, []*dispatcher.Event{e})[0]
		})
	}
	if err != nil {
		return slices.Repeat([]error{s.outcome(ctx, err)}, len(batch))
	}
	s.wake(batch[0].Namespace)
	errs = make([]error, len(batch))
	for i, e := range batch {
		if slices.Contains(lost, e.Lease()) {
			errs[i] = errLost
		}
	}
	return errs
}

func (s *Sink) copy(ctx context.Context, batch []*dispatcher.Event) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(batch))
	for i, e := range batch {
		leases[i] = e.Lease()
	}
	return s.store.Copy(ctx, s.topics, leases)
}

// isOfOneEvent reports whether one event may be to blame: its dedupe key, its size in an index, a check or a trigger.
func isOfOneEvent(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains([]string{"22", "23", "44", "54", "P0"}, pg.Code[:min(2, len(pg.Code))])
}

// outcome says what the failure of a statement means for its events.
func (s *Sink) outcome(ctx context.Context, err error) error {
	to := "copy to " + strings.Join(s.topics, ", ")
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil:
		return base.Interrupted(ctx, to)
	case !errors.As(err, &pg): // the connection; what was copied all the same is not copied again
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, s.brief(err)))
	case pg.ConstraintName == "outbox_events_dedupe":
		return reason.Coded(pg.Code, fmt.Errorf("%s: another event of one of these topics has the dedupe key; give copied topics to no producer, and copy no two topics with the same keys to one", to))
	case strings.HasPrefix(pg.Code, "54"):
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, reason.Coded(pg.Code, fmt.Errorf("%s: namespace, topic and dedupe key are together too long for an index; shorten the name of the topic", to)))
	case isOfOneEvent(err):
		return reason.Coded(pg.Code, fmt.Errorf("%s: the server refuses the event (SQLSTATE %s); see what was added to outbox_events: a constraint, or a trigger", to, pg.Code))
	case pg.Code == "42501", pg.Code == "42883":
		return dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, s.brief(err)))
	default:
		return dispatcher.DestinationFault(reason.Coded(pg.Code, s.brief(err)))
	}
}

// brief is an error of the database in one sentence, with the remedy.
func (s *Sink) brief(err error) error {
	_, message := database.Classify(err)
	return fmt.Errorf("copy to %s: %s", strings.Join(s.topics, ", "), message)
}

// Probe finds out whether the login may copy, and whether other dispatchers of the namespace copy the copies back.
func (s *Sink) Probe(ctx context.Context) error {
	store, done, err := s.open(ctx)
	if err != nil {
		return dispatcher.Unavailable(err)
	}
	defer done()
	if err := store.CopyProblem(ctx, s.cfg.Topics, s.topics); err != nil {
		return dispatcher.Unavailable(err)
	}
	return nil
}

// Warnings says what copies wait for, and what may have them refused. It fails when the database cannot be reached.
func (s *Sink) Warnings(ctx context.Context) ([]string, error) {
	store, done, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return store.CopyWarnings(ctx, s.topics)
}

// open returns the store that the sink is bound to, else one of its own until done.
func (s *Sink) open(ctx context.Context) (store *pgstore.Store, done func(), err error) {
	if s.store != nil {
		return s.store, func() {}, nil
	}
	pool, err := database.Pool(ctx, s.cfg.Database, s.cfg.Name)
	if err != nil {
		return nil, nil, err
	}
	return pgstore.New(pool, pgstore.Options{Schema: s.cfg.Database.Schema, Namespace: s.cfg.Namespace, Dispatcher: s.cfg.Name}), pool.Close, nil
}

// Close does nothing: the connections are the dispatcher's.
func (*Sink) Close(context.Context) error { return nil }

var _ draft.Sink = (*Sink)(nil)

// Draft implements [draft.Sink]. A copy has what the event has.
func (s *Sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	return draft.Message{To: "the topics " + strings.Join(s.topics, ", "), Key: e.Key(), Body: e.Payload, Headers: e.Headers}, nil
}
