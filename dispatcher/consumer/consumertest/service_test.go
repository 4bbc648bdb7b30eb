package consumertest_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer/consumertest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is a consumer with the parts that the broken ones are made of.
type service struct {
	*pgxpool.Pool
	handler *consumer.Consumer[consumer.PGX, pgx.Tx]
	crash   bool // crash when the effect was made, and before its record is committed
	both    chan struct{}
	counted chan struct{} // a signal for each count of effects

	mu       sync.Mutex
	known    map[string]bool
	outside  map[uuid.UUID]int64 // the tokens of effects outside of the database
	last     int64
	failed   bool
	restarts int // requests that are refused since it was restarted
}

var errCrash = errors.New("killed")

// execer is a transaction or the pool, where each statement commits.
type execer interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

func newService(t *testing.T) *service {
	s := &service{
		Pool: pgtest.Pool(t, pgtest.Empty(t)), known: map[string]bool{}, outside: map[uuid.UUID]int64{},
		both: make(chan struct{}), counted: make(chan struct{}, 1),
	}
	s.handler = consumer.New(consumer.Options{ID: "billing", Logger: slog.New(slog.DiscardHandler)})
	if err := s.exec(t.Context(), consumer.SQL("")+"create table effects (tracking_id uuid); create table keys (tracking_id uuid primary key)"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *service) exec(ctx context.Context, statement string) error {
	_, err := s.Exec(ctx, statement)
	return err
}

func (s *service) inTransaction(ctx context.Context, e *consumer.Event, effect func(pgx.Tx) error) error {
	_, err := s.handler.Handle(ctx, s, e, effect)
	return err
}

// effect writes an effect.
func (s *service) effect(ctx context.Context, tx execer, e *consumer.Event) error {
	if _, err := tx.Exec(ctx, "insert into effects values ($1)", e.ID); err != nil {
		return err
	}
	if s.crash {
		return errCrash
	}
	return nil
}

func (s *service) recorded(ctx context.Context, e *consumer.Event) (there bool, err error) {
	err = s.QueryRow(ctx, "select exists (select from processed_events where tracking_id = $1)", e.ID).Scan(&there)
	return there, err
}

// record returns whether the record is new.
func (s *service) record(ctx context.Context, e *consumer.Event) (bool, error) {
	tag, err := s.Exec(ctx, "insert into processed_events values ($1, 'broken') on conflict do nothing", e.ID)
	return tag.RowsAffected() == 1, err
}

// first reports whether the key was not known before.
func (s *service) first(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[key]
	s.known[key] = true
	return !known
}

// meet waits until two deliveries are here, or no second one comes.
func (s *service) meet() {
	select {
	case s.both <- struct{}{}:
	case <-s.both:
	case <-time.After(200 * time.Millisecond):
	}
}

// untilCounted waits until effects were counted, for a second at most.
func (s *service) untilCounted() {
	select {
	case <-s.counted:
	case <-time.After(time.Second):
	}
}

// subject is the consumer with every hook.
func (s *service) subject(deliver func(context.Context, *service, *consumer.Event) error) consumertest.Consumer {
	rename := func(ctx context.Context, table string, hidden bool) error {
		if hidden {
			return s.exec(ctx, "alter table "+table+" rename to hidden_"+table)
		}
		return s.exec(ctx, "alter table hidden_"+table+" rename to "+table)
	}
	return consumertest.Consumer{
		Deliver: func(ctx context.Context, e *consumer.Event) error { return deliver(ctx, s, e) },
		Event: func() *consumer.Event {
			return &consumer.Event{EventType: "OrderPlaced", AggregateID: "o-7", Payload: []byte(`{"order": 7, "currency": "EUR"}`)}
		},
		Optional: []string{"currency"},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = s.QueryRow(ctx, "select (select count(*) from effects where tracking_id = $1) + (select count(*) from keys where tracking_id = $1)", id).Scan(&n)
			select {
			case s.counted <- struct{}{}:
			default:
			}
			return n, err
		},
		Token: func(_ context.Context, id uuid.UUID) (int64, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.outside[id], nil
		},
		Restart: func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.known, s.restarts, s.failed = map[string]bool{}, 3, false
			return nil
		},
		FailEffect: func(ctx context.Context, fails bool) error {
			return errors.Join(rename(ctx, "effects", fails), rename(ctx, "keys", fails))
		},
		FailRecord: func(ctx context.Context, fails bool) error { return rename(ctx, "processed_events", fails) },
		Crash: func(ctx context.Context, e *consumer.Event) error {
			s.crash = true
			defer func() { s.crash = false }()
			if err := deliver(ctx, s, e); !errors.Is(err, errCrash) {
				return errors.Join(err, errors.New("it did not crash"))
			}
			return nil
		},
	}
}
