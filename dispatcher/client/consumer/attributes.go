package consumer

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// attributes of a CloudEvent, by name.
type attributes map[string]string

// own are the attributes that are not headers of the producer. A header of such a name has the prefix "header".
var own = map[string]bool{
	"specversion": true, "id": true, "source": true, "type": true, "subject": true, "time": true,
	"datacontenttype": true, "dataschema": true, "data": true,
	"trackingid": true, "dedupekey": true, "fencingtoken": true, "attempt": true,
	"outboxnamespace": true, "topic": true, "aggregatetype": true, "aggregateid": true,
	"tenantid": true, "sequence": true, "aggregatesequence": true, "partitionkey": true,
}

// attributeName is the name that a producer's header has as an attribute.
func attributeName(header string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return -1
		}
	}, header)
	if name == "" || own[name] {
		return "header" + name
	}
	return name
}

// event makes the event of the attributes. Only the id is required; a number that is none is an error, and
// any other attribute may be missing.
func (a attributes) event(payload []byte) (*Event, error) {
	text := a["trackingid"]
	if text == "" {
		text = a["id"]
	}
	if text == "" {
		return nil, undecodable("it has no attribute trackingid and no id; let the dispatcher send CloudEvents, or make the Event yourself")
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, undecodable("its id is not a UUID; only events of an outbox can be decoded")
	}
	e := &Event{
		ID: id, Namespace: a["outboxnamespace"], Topic: a["topic"], EventType: a["type"], AggregateType: a["aggregatetype"],
		AggregateID: a["aggregateid"], PartitionKey: a["partitionkey"], DedupeKey: a["dedupekey"],
		Headers: map[string]string{}, ContentType: a["datacontenttype"], Payload: payload,
	}
	if e.Namespace == "" {
		e.Namespace = namespaceOf(a["source"])
	}
	if e.AggregateID == "" {
		e.AggregateID = a["subject"]
	}
	if e.FencingToken, err = a.number("fencingtoken", 64); err != nil {
		return nil, err
	}
	if e.Sequence, err = a.number("sequence", 64); err != nil {
		return nil, err
	}
	if e.AggregateSequence, err = a.number("aggregatesequence", 64); err != nil {
		return nil, err
	}
	attempt, err := a.number("attempt", 32)
	if err != nil {
		return nil, err
	}
	e.Attempt = int(attempt)
	if text := a["tenantid"]; text != "" {
		if e.TenantID.UUID, err = uuid.Parse(text); err != nil {
			return nil, undecodable("its tenantid is not a UUID")
		}
		e.TenantID.Valid = true
	}
	if text := a["time"]; text != "" {
		if e.CreatedAt, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, undecodable("its time is none of RFC 3339")
		}
	}
	for name, value := range a {
		if !own[name] {
			e.Headers[name] = value
		}
	}
	return e, nil
}

func (a attributes) number(name string, bits int) (int64, error) {
	if a[name] == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(a[name], 10, bits)
	if err != nil {
		return 0, undecodable("its %s is not a whole number", name)
	}
	return n, nil
}

// namespaceOf reads /outbox/<namespace>/<topic>.
func namespaceOf(source string) string {
	parts := strings.Split(source, "/")
	if len(parts) != 4 || parts[1] != "outbox" {
		return ""
	}
	namespace, err := url.PathUnescape(parts[2])
	if err != nil {
		return ""
	}
	return namespace
}

// undecodable is the refusal of a message; it never quotes it.
func undecodable(format string, args ...any) error {
	return Refuse(fmt.Errorf("the message is not an event of an outbox: "+format, args...))
}
