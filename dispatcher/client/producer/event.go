package producer

import (
	"bytes"
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

// Event is one event of a service. Namespace (unless [Options] has one), Topic and Payload are required.
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
	// added as traceparent and tracestate, unless traceparent is set here. Together they have at most
	// 64 KiB as JSON (CONTRACT C-16).
	Headers map[string]string
	// Delay holds the event back, from the database's now (CONTRACT C-14). Defaults to 0.
	Delay time.Duration
	// Expires is for how long the event is worth sending, from when it is due: a dispatcher that claims it later makes it
	// expired, and never sends it (CONTRACT C-18). 0 means the dispatcher's expireAfter.
	Expires time.Duration
	// ExpiresAt says the same by a time, up to the year 9999. The zero time means that Expires holds.
	ExpiresAt time.Time
	// MaxAttempts is the retry budget of this event, 1 to 1000. 0 means the dispatcher's.
	MaxAttempts int
	// Retry is the backoff of this event. nil means the dispatcher's.
	Retry *Retry
	// AggregateSequence gives the event the next number of its aggregate: 1, 2, 3 and so on without gaps, by which
	// consumers can detect that they miss one. Transactions that number events of one aggregate take turns, from here
	// until they commit or roll back. It needs AggregateID. Defaults to false.
	AggregateSequence bool
	// ID is the event's id, for a caller that has made one, so that it can enqueue again without knowing
	// whether it did before: an id that is there, in the same namespace and topic, adds no row. The
	// zero UUID means that one is made, of version 7.
	ID uuid.UUID
}

// ErrInvalid marks an event that cannot be enqueued as it is (CONTRACT C-12, C-13). The error that
// wraps it names the field and the remedy, and never holds the payload.
var ErrInvalid = errors.New("invalid event")

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrInvalid, field, fmt.Sprintf(format, args...))
}

// record checks the event for all that PostgreSQL would refuse, since an error there costs the
// caller's transaction.
func (p *Producer[T]) record(ctx context.Context, e *Event) (record, error) {
	if e.Namespace == "" && p.namespace != "" {
		own := *e // the caller's stays as it is
		own.Namespace = p.namespace
		e = &own
	}
	payload, err := e.payload(p.maxPayloadBytes)
	if err != nil {
		return record{}, err
	}
	if p.objectsOnly && bytes.TrimLeft(payload, " \t\r\n")[0] != '{' {
		return record{}, invalid("Payload", "is not a JSON object, which Options.ObjectsOnly requires; pass a struct, a map or an object's JSON")
	}
	headers := e.headers(ctx)
	headersText, err := checkHeaders(headers)
	if err := errors.Join(err, e.checkText(), e.checkDedupeKey(), e.checkRetry()); err != nil {
		return record{}, err
	}
	if e.Delay < 0 {
		return record{}, invalid("Delay", "is negative (%s); leave it 0 to deliver at once", e.Delay)
	}
	if e.LockKey && e.PartitionKey == "" && e.AggregateID == "" {
		return record{}, invalid("LockKey", "is set without a key; set AggregateID or PartitionKey too")
	}
	if e.AggregateSequence {
		if e.AggregateID == "" {
			return record{}, invalid("AggregateSequence", "is set without an aggregate; set AggregateID too")
		}
		if n := len(e.Namespace) + len(e.AggregateType) + len(e.AggregateID); n > maxKeyBytes {
			return record{}, invalid("AggregateID", "has %d bytes with Namespace and AggregateType; use at most %d to number events, or a hash", n, maxKeyBytes)
		}
	}
	r := record{event: e, payload: string(payload), headers: headersText, options: e.options()}
	if e.ID != uuid.Nil {
		r.id = text(e.ID.String())
	}
	return r, nil
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

// maxHeaderBytes bounds the headers as PostgreSQL prints them.
const maxHeaderBytes = 64 << 10

// checkHeaders returns the headers as JSON, or nil when there are none.
func checkHeaders(headers map[string]string) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	for name, value := range headers {
		if name == "" {
			return nil, invalid("Headers", "has an empty name; name the header, or remove it")
		}
		if !storable(name) || !storable(value) {
			return nil, invalid("Headers", "[%q] has a NUL or bytes that are not UTF-8, which PostgreSQL cannot store; remove them", name)
		}
	}
	encoded := compact(headers)
	// PostgreSQL adds a space after each colon and comma.
	if n := len(encoded) + 2*len(headers) - 1; n > maxHeaderBytes {
		return nil, invalid("Headers", "have %d bytes as JSON, more than %d; put what is large into the payload", n, maxHeaderBytes)
	}
	return text(encoded), nil
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
