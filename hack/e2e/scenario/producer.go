package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
)

// The shop's stream of events.
const (
	Namespace = "shop"
	Topic     = "orders"
)

// Plan says what the shop's service does.
type Plan struct {
	// Orders is how many transactions it begins; Writers is how many run at once.
	Orders, Writers int
	// RollbackPercent of them roll back after the event was enqueued; ResendPercent are sent twice
	// with the same dedupe key, as a service does that retries its request.
	RollbackPercent, ResendPercent int
	// NoPoison leaves the poisoned order out.
	NoPoison bool
}

// Produced is what the service knows of its own transactions.
type Produced struct {
	// Committed and RolledBack are event ids. Poisoned is the committed event that the consumer refuses.
	Committed, RolledBack map[uuid.UUID]bool
	Poisoned              uuid.UUID
	// Resent counts second sends that got "already enqueued".
	Resent int
}

// Produce plays the shop's service: each order is a row of its own table and an event, in one
// transaction. The order in the middle is poisoned. It returns an error when a transaction fails.
func Produce(ctx context.Context, dsn string, plan Plan) (*Produced, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the producer's connection string: %w", err)
	}
	cfg.MaxConns = int32(plan.Writers)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("the producer's pool: %w", err)
	}
	defer pool.Close()

	service := &service{pool: pool, plan: plan, produced: &Produced{Committed: map[uuid.UUID]bool{}, RolledBack: map[uuid.UUID]bool{}}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(plan.Writers)
	for n := range plan.Orders {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return service.order(ctx, n) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return service.produced, nil
}

type service struct {
	pool *pgxpool.Pool
	plan Plan

	mu       sync.Mutex
	produced *Produced
}

// outbox is how the service enqueues: made once.
var outbox = producer.New(producer.Options{})

// errChangedMind is why a share of the transactions rolls back.
var errChangedMind = errors.New("the customer changed their mind")

func (s *service) order(ctx context.Context, n int) error {
	order := uuid.New()
	event := producer.Event{
		Namespace: Namespace, Topic: Topic, EventType: "OrderPlaced",
		AggregateType: "order", AggregateID: order.String(),
		Payload: map[string]any{"order": order, "total_cents": 100 + n},
	}
	poisoned := n == s.plan.Orders/2 && !s.plan.NoPoison
	if poisoned {
		event.EventType = PoisonType
	}
	rollback := !poisoned && rand.IntN(100) < s.plan.RollbackPercent
	resend := !rollback && rand.IntN(100) < s.plan.ResendPercent
	if resend {
		event.DedupeKey = "order-" + order.String()
	}

	receipt, err := s.commit(ctx, order, event, rollback)
	if err != nil && !errors.Is(err, errChangedMind) {
		return fmt.Errorf("order %d: %w", n, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rollback {
		s.produced.RolledBack[receipt.ID] = true
		return nil
	}
	s.produced.Committed[receipt.ID] = true
	if poisoned {
		s.produced.Poisoned = receipt.ID
	}
	if resend {
		return s.resend(ctx, event, receipt)
	}
	return nil
}

// commit is what a service does: its own row and the event, in one transaction.
func (s *service) commit(ctx context.Context, order uuid.UUID, event producer.Event, rollback bool) (receipt producer.Receipt, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into orders (id, customer, total_cents) values ($1, $2, $3)", order, "customer", 100)
		if err != nil {
			return err
		}
		if receipt, err = outbox.Enqueue(ctx, tx, event); err != nil {
			return err
		}
		if rollback {
			return errChangedMind
		}
		return nil
	})
	return receipt, err
}

func (s *service) resend(ctx context.Context, event producer.Event, first producer.Receipt) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		second, err := outbox.Enqueue(ctx, tx, event)
		if err != nil {
			return err
		}
		if second.Enqueued || second.ID != first.ID {
			return fmt.Errorf("the event with dedupe key %q was enqueued twice", event.DedupeKey)
		}
		s.produced.Resent++
		return nil
	})
}
