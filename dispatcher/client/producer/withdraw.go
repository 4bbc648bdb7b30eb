package producer

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// Named names an event that was enqueued: by its dedupe key or by its id, one of the two.
type Named struct {
	// Namespace and Topic are the event's. Namespace defaults to Options.Namespace.
	Namespace string
	Topic     string
	DedupeKey string
	ID        uuid.UUID
}

// Outcome is what became of an event that was to be withdrawn.
type Outcome string

// The outcomes of a withdrawal.
const (
	// Withdrawn: the event was never sent, and is not once the transaction commits. Also when it was withdrawn before.
	Withdrawn Outcome = "withdrawn"
	// TooLate: the event was sent or may have been, is being sent, or waits for another try. Correct it by another event.
	TooLate Outcome = "too late"
	// Unknown: there is no such event, or its retention is over.
	Unknown Outcome = "unknown"
)

// Withdrawal is the result for one event.
type Withdrawal struct {
	Outcome Outcome
	// ID is the event's id, zero when it is [Unknown].
	ID uuid.UUID
	// Token is the event's newest fencing token when it is [TooLate]; 0 where none is known.
	Token int64
}

// withdrawMany is the statement, with a place for the schema, as those of enqueue.
const withdrawMany = `select result, coalesce(token, 0), coalesce(id, '00000000-0000-0000-0000-000000000000') ` +
	`from %s.withdraw_batch($1::text[], $2::text[], $3::text[], $4::uuid[])`

// Withdraw takes an event back inside the caller's transaction, if no dispatcher has claimed it (CONTRACT C-17). Until the
// transaction ends dispatchers pass it by, and so they do the later events of its key with ordering Key. A rollback leaves it as it was. Its
// dedupe key stays taken. Errors are those of [Producer.Enqueue].
func (p *Producer[T]) Withdraw(ctx context.Context, tx T, event Named) (Withdrawal, error) {
	all, err := p.WithdrawBatch(ctx, tx, []Named{event})
	if err != nil {
		return Withdrawal{}, err
	}
	return all[0], nil
}

// WithdrawBatch is [Producer.Withdraw] for many events in one round trip. Withdrawal i is about events[i]. When one is not
// named as it must be, none is withdrawn.
func (p *Producer[T]) WithdrawBatch(ctx context.Context, tx T, events []Named) ([]Withdrawal, error) {
	if len(events) == 0 {
		return nil, nil
	}
	var columns [4][]*string
	for i, e := range events {
		if e.Namespace == "" {
			e.Namespace = p.namespace
		}
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
		id := (*string)(nil)
		if e.ID != uuid.Nil {
			id = text(e.ID.String())
		}
		for c, value := range []*string{text(e.Namespace), text(e.Topic), optional(e.DedupeKey), id} {
			columns[c] = append(columns[c], value)
		}
	}
	args := []any{p.driver.array(columns[0]), p.driver.array(columns[1]), p.driver.array(columns[2]), arrayLiteral(columns[3])}
	all := make([]Withdrawal, len(events))
	err := p.send(ctx, tx, "withdraw from", withdrawMany, args, len(all), func(i int) []any {
		return []any{&all[i].Outcome, &all[i].Token, &all[i].ID}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// check finds what PostgreSQL would refuse, since an error there costs the caller's transaction.
func (n Named) check() error {
	e := Event{Namespace: n.Namespace, Topic: n.Topic, DedupeKey: n.DedupeKey}
	if err := e.checkText(); err != nil {
		return err
	}
	if (n.DedupeKey == "") == (n.ID == uuid.Nil) {
		return invalid("DedupeKey", "and ID are both set, or neither is; set one of them to name the event")
	}
	return nil
}
