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

// Notification is the body. Of the dead letter it has what a list tells, and what to do.
type Notification struct {
	// Dispatcher is the name of the dispatcher, and Namespace the outbox namespace of the event.
	Dispatcher string `json:"dispatcher"`
	Namespace  string `json:"namespace"`
	deadletters.DeadLetter
}

// death is a dead letter that was taken.
type death struct {
	deadletters.DeadLetter
	eventID  pgtype.UUID
	tenant   pgtype.UUID
	at       time.Time // when it was taken, on the database's clock
	attempts int       // to send it, this one too
	givenUp  bool

	begun, sent bool
	err         error // why it was not sent
}

// event is the message. A CloudEvent of the outbox has what it needs, so it is one as any other.
func (d *death) event(o Options) (*dispatcher.Event, error) {
	body, err := json.Marshal(Notification{o.Dispatcher, o.Namespace, d.DeadLetter})
	if err != nil {
		return nil, fmt.Errorf("write the notification of dead letter %d: %w", d.ID, err)
	}
	return &dispatcher.Event{
		ID:  uuid.NewSHA1(d.eventID.Bytes, strconv.AppendInt([]byte("dead letter "), d.ID, 10)),
		Seq: d.ID, Namespace: o.Namespace, Topic: d.Topic, TenantID: uuid.NullUUID{UUID: d.tenant.Bytes, Valid: d.tenant.Valid},
		EventType: EventType, AggregateType: d.AggregateType, AggregateID: d.AggregateID,
		Headers: map[string]string{}, Payload: body, CreatedAt: d.DeadAt, Attempt: d.attempts, LeaseNumber: int64(d.attempts),
	}, nil
}

// delay is the time until it is tried again: at once where this attempt was not begun, or was broken off.
func (d *death) delay(stopped bool) time.Duration {
	if d.err == nil || stopped {
		return 0
	}
	return max(min(max(d.at.Sub(d.DeadAt)/2, soonest), latest), dispatcher.RetryAfterDelay(d.err))
}
