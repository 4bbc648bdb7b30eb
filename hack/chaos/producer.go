package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// topics of the shop, the first the busiest.
var topics = []string{"orders", "orders", "orders", "invoices", "mail"}

const placedType = "OrderPlaced"

// entry is a line of a producer's journal, about one transaction. The first is written before the
// producer says commit or roll back, and there is no second when it never learned the outcome.
type entry struct {
	At  time.Time   `json:"at"`
	IDs []uuid.UUID `json:"ids,omitempty"`
	// Committed is the outcome, and missing in the first entry.
	Committed *bool `json:"committed,omitempty"`
	// Withdrawn and Late are of a transaction that withdraws: what the producer heard of these, and has committed the first.
	Withdrawn []uuid.UUID `json:"withdrawn,omitempty"`
	Late      []uuid.UUID `json:"late,omitempty"`
}

// shop is a service that enqueues, in a process of its own.
type shop struct {
	pool    *pgxpool.Pool
	outbox  *producer.Producer[producer.PGX]
	waker   *producer.Waker
	mu      sync.Mutex
	journal io.Writer
}

// produce is the producer's process: writers that commit until the end, or with -hold one transaction.
func produce(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("producer", flag.ExitOnError)
	dsn := flags.String("dsn", "", "the database")
	file := flags.String("journal", "", "file of transactions")
	rate := flags.Int("rate", 50, "transactions a second, of all writers")
	writers := flags.Int("writers", 4, "connections")
	hold := flags.Duration("hold", 0, "begin one transaction and commit it after this time")
	_ = flags.Parse(args) // it exits
	journal, err := appendTo(*file)
	if err != nil {
		return err
	}
	defer journal.Close()
	pool, err := pgxpool.New(ctx, *dsn)
	if err != nil {
		return fmt.Errorf("the producer's pool: %w", err)
	}
	defer pool.Close()
	s := &shop{
		pool: pool, outbox: producer.New(producer.Options{}), journal: journal,
		waker: producer.NewWaker(pool, producer.WakerOptions{}),
	}
	if *hold > 0 {
		events := make([]producer.Event, 20)
		for i := range events {
			events[i] = newEvent()
		}
		return s.transaction(context.WithoutCancel(ctx), events, func() bool { time.Sleep(*hold); return true })
	}
	var all sync.WaitGroup
	for range *writers {
		all.Go(func() { s.write(ctx, time.Second*time.Duration(*writers)/time.Duration(*rate)) })
	}
	all.Wait()
	return nil
}

// write commits transactions until ctx ends. What the database does not take is not tried again:
// the journal says what became of it.
func (s *shop) write(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := 1 + rand.IntN(3)
		if rand.IntN(100) == 0 {
			n = 100
		}
		events := make([]producer.Event, n)
		for i := range events {
			events[i] = newEvent()
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		if err := s.transaction(limited, events, func() bool { return rand.IntN(10) > 0 }); err != nil {
			fmt.Fprintln(os.Stderr, err) // the database is unreachable
		}
		cancel()
	}
}

// newEvent is an order of one of the shop's customers, one of whom orders more than others.
func newEvent() producer.Event {
	customer := max(0, rand.IntN(100)-2)
	e := producer.Event{
		Namespace: scenario.Namespace, Topic: topics[rand.IntN(len(topics))], EventType: placedType,
		AggregateType: "customer", AggregateID: fmt.Sprintf("customer-%d", customer),
		TenantID: uuid.UUID{15: byte(customer % 7)}, // none for one in seven
		Payload:  map[string]int{"total_cents": rand.IntN(10_000)},
	}
	switch rand.IntN(200) {
	case 0:
		e.EventType = scenario.PoisonType
	case 1, 2, 3:
		e.Delay = time.Duration(rand.IntN(3000)) * time.Millisecond
	case 6, 7, 8, 9: // about as long as a jump of the database's clock
		e.Expires = time.Duration(5+rand.IntN(20)) * time.Second
	case 4:
		e.AggregateID = "" // no key
	case 5: // more than a socket's buffers are at first
		e.Payload = map[string]string{"text": strings.Repeat("x", 200_000+rand.IntN(800_000))}
	}
	return e
}

// transaction enqueues events and then commits or rolls back. Some of them it withdraws again, in another one.
func (s *shop) transaction(ctx context.Context, events []producer.Event, decide func() bool) error {
	var names []producer.Named
	err := s.commit(ctx, func(tx pgx.Tx) ([]uuid.UUID, error) {
		receipts, err := s.outbox.EnqueueBatch(ctx, tx, events)
		ids := make([]uuid.UUID, len(receipts))
		for i, r := range receipts {
			ids[i] = r.ID
			names = append(names, producer.Named{Namespace: events[i].Namespace, Topic: events[i].Topic, ID: r.ID})
		}
		return ids, err
	}, decide)
	if err == nil && rand.IntN(4) == 0 {
		err = s.withdraw(ctx, names[:min(3, len(names))])
	}
	return err
}

// withdraw withdraws events, commits or rolls back, and notes what it heard.
func (s *shop) withdraw(ctx context.Context, names []producer.Named) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	said, err := s.outbox.WithdrawBatch(ctx, tx, names)
	if err != nil {
		return err
	}
	committed := rand.IntN(3) > 0
	if committed {
		committed = tx.Commit(ctx) == nil // else it is unknown, and the row reports in the end
	}
	var heard entry
	for _, w := range said {
		switch {
		case w.Outcome == producer.TooLate:
			heard.Late = append(heard.Late, w.ID)
		case w.Outcome == producer.Withdrawn && committed:
			heard.Withdrawn = append(heard.Withdrawn, w.ID)
		}
	}
	return s.note(heard)
}

// commit does what adds events, and then commits or rolls back, and keeps the journal.
func (s *shop) commit(ctx context.Context, add func(pgx.Tx) ([]uuid.UUID, error), decide func() bool) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	ids, err := add(tx)
	if err != nil {
		return err
	}
	if err := s.note(entry{IDs: ids}); err != nil {
		return err
	}
	committed := decide()
	if committed {
		err = tx.Commit(ctx)
	} else {
		err = tx.Rollback(ctx)
	}
	if err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) {
		return err // unknown: the row reports in the end
	}
	if committed = committed && err == nil; committed && s.waker != nil && rand.IntN(2) == 0 {
		s.waker.Wake(scenario.Namespace)
	}
	return s.note(entry{IDs: ids, Committed: &committed})
}

func (s *shop) note(e entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = time.Now()
	return json.NewEncoder(s.journal).Encode(e)
}
