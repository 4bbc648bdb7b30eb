package notify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// EventType is the type of the CloudEvent.
const EventType = "dev.outbox.deadletter.created"

// Notification is the body. It has the dead letter as a list has it, and what to do.
type Notification struct {
	// Dispatcher is the name of the dispatcher, and Namespace the outbox namespace of the event.
	Dispatcher string `json:"dispatcher"`
	Namespace  string `json:"namespace"`
	deadletters.DeadLetter
}

// notification is a dead letter that this process has taken, and what became of sending it.
type notification struct {
	deadletters.DeadLetter
	eventID  pgtype.UUID
	tenant   pgtype.UUID
	takenAt  time.Time // on the database's clock
	attempts int       // to send it, including this one
	givenUp  bool

	started, sent bool
	err           error // why it was not sent
}

// event returns the message: sink http writes it as it writes any event.
func (n *notification) event(o Options) (*dispatcher.Event, error) {
	body, err := json.Marshal(Notification{o.Dispatcher, o.Namespace, n.DeadLetter})
	if err != nil {
		return nil, fmt.Errorf("write the notification of dead letter %d: %w", n.ID, err)
	}
	return &dispatcher.Event{
		ID:  uuid.NewSHA1(n.eventID.Bytes, strconv.AppendInt([]byte("dead letter "), n.ID, 10)),
		Seq: n.ID, Namespace: o.Namespace, Topic: n.Topic, TenantID: uuid.NullUUID{UUID: n.tenant.Bytes, Valid: n.tenant.Valid},
		EventType: EventType, AggregateType: n.AggregateType, AggregateID: n.AggregateID,
		Headers: map[string]string{}, Payload: body, CreatedAt: n.DeadAt, Attempt: n.attempts, LeaseNumber: int64(n.attempts),
	}, nil
}

// delay returns the time until the next attempt: none when this attempt was not started, or was interrupted.
func (n *notification) delay(stopped bool) time.Duration {
	if n.err == nil || stopped {
		return 0
	}
	return max(min(max(n.takenAt.Sub(n.DeadAt)/2, minRetry), maxRetry), dispatcher.RetryAfterDelay(n.err))
}
