package consumer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Event is one delivery of an event, whichever sink sent it. Only ID is always set.
type Event struct {
	// ID is the event's id, its tracking_id: the same for every delivery.
	ID uuid.UUID
	// FencingToken is the number of this delivery's lease. For one event it only rises, through retries and replays
	// (CONTRACT C-27). 0 when the message has none.
	FencingToken int64
	// Attempt is the number of this delivery, from 1, and again from 1 after a replay. 0 when the message has none.
	Attempt int
	// Sequence is the event's place in the outbox. It has gaps that fill late: never a cursor.
	Sequence int64
	// AggregateSequence is the number of the event in its aggregate, from 1. The producer's committed events have all
	// numbers: one that never comes is an event that was lost on the way. 0 when the message has none.
	AggregateSequence int64

	Namespace, Topic, EventType, AggregateType, AggregateID string
	// PartitionKey is what the message was partitioned by.
	PartitionKey string
	// DedupeKey is the producer's, empty when it gave none.
	DedupeKey string
	// TenantID is not Valid when the event has none.
	TenantID uuid.NullUUID
	// CreatedAt is on the clock of the outbox's database.
	CreatedAt time.Time
	// Headers are the producer's, by the names that they have as attributes of a CloudEvent: see [Event.Header].
	Headers map[string]string
	// ContentType is the payload's: application/json, but for the encodings Avro and Protobuf of Kafka.
	ContentType string
	// Payload is the event's data, byte for byte as the message has it.
	Payload []byte
}

// IdempotencyKey is the key for calls to others that must take effect once, such as a charge: the event's id, the same
// for every delivery (RULE-010-003). A call that is repeated with it, because its response was lost, takes effect once.
func (e *Event) IdempotencyKey() string { return e.ID.String() }

// FencedKey is event id and fencing token: new for each delivery (RULE-010-003). It distinguishes deliveries, in a log
// or at a callee that refuses older tokens. Never give it to a callee that dedupes on the whole key: a charge whose
// response was lost would be made again. Without a token it is the [Event.IdempotencyKey].
func (e *Event) FencedKey() string {
	if e.FencingToken == 0 {
		return e.IdempotencyKey()
	}
	return e.IdempotencyKey() + "-" + strconv.FormatInt(e.FencingToken, 10)
}

// Header returns the producer's header by the name that it was given, such as correlation_id. It is empty when there
// is none.
func (e *Event) Header(name string) string { return e.Headers[attributeName(name)] }

const versionHeader = "schemaversion"

// SchemaVersion is the whole number in the header schema_version, else in the payload's field of that name, else 1
// (RULE-010-021). A leading v is allowed. It fails when that is not a whole number.
func (e *Event) SchemaVersion() (int, error) {
	text, there := e.Headers[versionHeader]
	if !there {
		var payload struct {
			SchemaVersion json.RawMessage `json:"schema_version"`
		}
		if json.Unmarshal(e.Payload, &payload) != nil || payload.SchemaVersion == nil || string(payload.SchemaVersion) == "null" {
			return 1, nil // a payload that is not an object has no version
		}
		text = strings.Trim(string(payload.SchemaVersion), `"`)
	}
	version, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(text), "v"))
	if err != nil || version < 0 {
		return 0, fmt.Errorf("event %s: schema_version is not a whole number; let its producer send 1, 2, 3 …", e.ID)
	}
	return version, nil
}

// Decode reads the payload as JSON into v, as encoding/json does: fields that v does not have are ignored, and those that
// the payload does not have keep what is in v, so set the defaults before (RULE-010-021). A number that goes into an
// any is a [json.Number] and keeps its digits. The error is a [Refused] and never quotes the payload.
func (e *Event) Decode(v any) error {
	if e.ContentType != "" && !isJSON(e.ContentType) {
		return Refuse(fmt.Errorf("event %s: the payload is %s and no JSON; decode Payload with that format's library", e.ID, e.ContentType))
	}
	if err := decodeJSON(e.Payload, v); err != nil {
		return Refuse(fmt.Errorf("event %s: the payload does not fit %T: %w; correct the type, or add an upcaster for its schema_version", e.ID, v, err))
	}
	return nil
}

// decodeJSON leaves what the payload holds out of its error.
func decodeJSON(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err := d.Decode(v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil && d.More():
		return errors.New("there is more after the value")
	case err == nil:
		return nil
	case errors.As(err, &wrongType):
		kind, _, _ := strings.Cut(wrongType.Value, " ") // "number 1234" quotes
		return fmt.Errorf("field %q is a %s, want %s", wrongType.Field, kind, wrongType.Type)
	default:
		return errors.New("it is not valid JSON")
	}
}

func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	media = strings.TrimSpace(media)
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}
