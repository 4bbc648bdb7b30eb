package producer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
)

// Event is what a service tells. Namespace, Topic and Payload are required.
type Event struct {
	// Namespace and Topic name the stream: dispatchers serve a namespace, or topics of it.
	// Each has 1 to 255 characters.
	Namespace string
	Topic     string
	// Payload is written as encoding/json does. A []byte or json.RawMessage is taken as it is, and
	// must be JSON.
	Payload any
	// EventType, AggregateType and AggregateID say what happened, and to what. Each may be empty.
	EventType     string
	AggregateType string
	AggregateID   string
	// PartitionKey is what messages are partitioned by, and what a dispatcher keeps the order of with
	// ordering Key. Defaults to AggregateID, else the event's id.
	PartitionKey string
	// LockKey makes transactions that enqueue events of this key take turns, from here until they
	// commit or roll back. Then the order per key is the order of the commits; see the package's
	// documentation for what it is without. Enqueue last in the transaction, so that others wait for
	// little more than the commit. It needs PartitionKey or AggregateID. Defaults to false.
	LockKey bool
	// TenantID is the tenant that the event belongs to. The zero UUID means none.
	TenantID uuid.UUID
	// DedupeKey makes the event idempotent: a second one with the same key, in the same namespace
	// and topic, adds no row. With a tenant it must start with the tenant's id and a slash
	// (CONTRACT C-12). Empty means none.
	DedupeKey string
	// Headers travel with the event: correlation id, schema version. The trace context of ctx is
	// added as traceparent and tracestate, unless traceparent is set here.
	Headers map[string]string
	// Delay holds the event back, from the database's now (CONTRACT C-14). Defaults to 0.
	Delay time.Duration
}

// ErrInvalid marks an event that cannot be enqueued as it is (CONTRACT C-12, C-13). The error that
// wraps it names the field and the remedy, and never holds the payload.
var ErrInvalid = errors.New("invalid event")

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrInvalid, field, fmt.Sprintf(format, args...))
}

// record is an event on its way to enqueue.sql, which reads these names.
type record struct {
	ID            uuid.UUID         `json:"id"`
	Namespace     string            `json:"namespace"`
	Topic         string            `json:"topic"`
	Payload       json.RawMessage   `json:"payload"`
	EventType     string            `json:"eventType,omitempty"`
	AggregateType string            `json:"aggregateType,omitempty"`
	AggregateID   string            `json:"aggregateID,omitempty"`
	PartitionKey  string            `json:"partitionKey,omitempty"`
	TenantID      uuid.UUID         `json:"tenantID,omitzero"`
	DedupeKey     string            `json:"dedupeKey,omitempty"`
	Headers       map[string]string `json:"headers"`
	Delay         string            `json:"delay"`
	LockKey       bool              `json:"lockKey,omitempty"`
}

// record checks the event for all that PostgreSQL would refuse, since an error there costs the
// caller's transaction.
func (p *Producer[T]) record(ctx context.Context, e *Event) (record, error) {
	payload, err := e.payload(p.maxPayloadBytes)
	if err != nil {
		return record{}, err
	}
	headers := e.headers(ctx)
	if err := errors.Join(e.checkText(), checkHeaders(headers), e.checkDedupeKey()); err != nil {
		return record{}, err
	}
	if e.Delay < 0 {
		return record{}, invalid("Delay", "is negative (%s); leave it 0 to deliver at once", e.Delay)
	}
	if e.LockKey && e.PartitionKey == "" && e.AggregateID == "" {
		return record{}, invalid("LockKey", "is set without a key; set AggregateID or PartitionKey too")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return record{}, fmt.Errorf("make an event id: %w", err)
	}
	return record{
		ID: id, Namespace: e.Namespace, Topic: e.Topic, Payload: payload,
		EventType: e.EventType, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		PartitionKey: e.PartitionKey, TenantID: e.TenantID, DedupeKey: e.DedupeKey,
		Headers: headers, Delay: fmt.Sprintf("%d microseconds", e.Delay.Microseconds()),
		LockKey: e.LockKey,
	}, nil
}

func (e *Event) payload(maxBytes int) (json.RawMessage, error) {
	var payload []byte
	switch v := e.Payload.(type) {
	case nil:
		return nil, invalid("Payload", "is missing; set it, or pass json.RawMessage(`null`) if null is meant")
	case []byte:
		payload = v
	case json.RawMessage:
		payload = v
	default:
		var err error
		if payload, err = json.Marshal(v); err != nil {
			return nil, fmt.Errorf("%w: Payload of type %T cannot be written as JSON; pass a value that encoding/json can write: %w", ErrInvalid, v, err)
		}
	}
	if len(payload) > maxBytes {
		return nil, invalid("Payload", "has %d bytes, more than the limit of %d; store the bulk elsewhere and send a reference, or raise Options.MaxPayloadBytes", len(payload), maxBytes)
	}
	if err := checkJSON(payload); err != nil {
		return nil, err
	}
	return payload, nil
}

const (
	// maxName and maxText are the longest texts, in characters. Names are bound as in the resource.
	maxName = 255
	maxText = 1024
	// maxKeyBytes is what an entry of the dedupe key's index holds: namespace, topic and key.
	maxKeyBytes = 2600
)

func (e *Event) checkText() error {
	for _, f := range []struct {
		field, value string
		required     bool
		limit        int
	}{
		{"Namespace", e.Namespace, true, maxName},
		{"Topic", e.Topic, true, maxName},
		{"EventType", e.EventType, false, maxText},
		{"AggregateType", e.AggregateType, false, maxText},
		{"AggregateID", e.AggregateID, false, maxText},
		{"PartitionKey", e.PartitionKey, false, maxText},
		{"DedupeKey", e.DedupeKey, false, maxText},
	} {
		switch n := utf8.RuneCountInString(f.value); {
		case f.required && n == 0:
			return invalid(f.field, "is missing; set it")
		case n > f.limit:
			return invalid(f.field, "has %d characters; use at most %d", n, f.limit)
		case !storable(f.value):
			return invalid(f.field, "has a NUL or bytes that are not UTF-8, which PostgreSQL cannot store; remove them")
		}
	}
	if n := len(e.Namespace) + len(e.Topic) + len(e.DedupeKey); n > maxKeyBytes {
		return invalid("DedupeKey", "has %d bytes with Namespace and Topic; use at most %d, or a hash of the key", n, maxKeyBytes)
	}
	return nil
}

// storable reports whether PostgreSQL's text can hold s.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func checkHeaders(headers map[string]string) error {
	for name, value := range headers {
		if name == "" {
			return invalid("Headers", "has an empty name; name the header, or remove it")
		}
		if !storable(name) || !storable(value) {
			return invalid("Headers", "[%q] has a NUL or bytes that are not UTF-8, which PostgreSQL cannot store; remove them", name)
		}
	}
	return nil
}

// checkDedupeKey is CONTRACT C-12.
func (e *Event) checkDedupeKey() error {
	if e.TenantID == uuid.Nil || e.DedupeKey == "" {
		return nil
	}
	tenant, _, slash := strings.Cut(e.DedupeKey, "/")
	if slash && (strings.EqualFold(tenant, e.TenantID.String()) || strings.EqualFold(tenant, hex.EncodeToString(e.TenantID[:]))) {
		return nil
	}
	return invalid("DedupeKey", "does not start with the tenant; make it %q and the rest, or leave out TenantID", e.TenantID.String()+"/")
}

// headers returns the caller's headers and, when ctx has one, its trace context (CONTRACT C-70).
func (e *Event) headers(ctx context.Context) map[string]string {
	headers := map[string]string{}
	maps.Copy(headers, e.Headers)
	if _, set := headers["traceparent"]; !set {
		propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
	}
	return headers
}
