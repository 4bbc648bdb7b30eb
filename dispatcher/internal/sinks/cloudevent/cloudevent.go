package cloudevent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// New returns e as a CloudEvent 1.0. The data is e's payload, not a copy of it.
func New(e *dispatcher.Event) event.Event {
	contentType := event.ApplicationJSON
	c := &event.EventContextV1{
		ID:              e.ID.String(),
		Source:          source(e),
		Type:            text(e.Topic),
		DataContentType: &contentType,
		Time:            &types.Timestamp{Time: e.CreatedAt},
		Extensions:      extensions(e),
	}
	if !blank(e.EventType) {
		c.Type = text(e.EventType)
	}
	if !blank(e.AggregateID) {
		subject := text(e.AggregateID)
		c.Subject = &subject
	}
	return event.Event{Context: c, DataEncoded: e.Payload}
}

// blank is true for what CloudEvents readers take for an empty string.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

func source(e *dispatcher.Event) types.URIRef {
	return types.URIRef{URL: url.URL{
		Path:    "/outbox/" + e.Namespace + "/" + e.Topic,
		RawPath: "/outbox/" + url.PathEscape(e.Namespace) + "/" + url.PathEscape(e.Topic),
	}}
}

func extensions(e *dispatcher.Event) map[string]any {
	x := make(map[string]any, len(taken)+len(e.Headers))
	x["trackingid"] = e.ID.String()
	x["fencingtoken"] = fmt.Sprintf("%019d", e.LeaseNumber)
	x["attempt"] = int32(e.Attempt)
	x["outboxnamespace"] = text(e.Namespace)
	x["topic"] = text(e.Topic)
	x["sequence"] = fmt.Sprintf("%019d", e.Seq)
	x["partitionkey"] = text(e.Key())
	if e.AggregateSequence > 0 {
		x["aggregatesequence"] = fmt.Sprintf("%019d", e.AggregateSequence)
	}
	if e.TenantID.Valid {
		x["tenantid"] = e.TenantID.UUID.String()
	}
	if !e.Expires.IsZero() {
		x["expirytime"] = e.Expires.UTC()
	}
	setText(x, "dedupekey", e.DedupeKey)
	setText(x, "aggregatetype", e.AggregateType)
	setText(x, "aggregateid", e.AggregateID)
	addHeaders(x, e.Headers)
	return x
}

func setText(x map[string]any, name, value string) {
	if value != "" {
		x[name] = text(value)
	}
}

// taken are the names that a header cannot have: those of CloudEvents and of the dispatcher,
// whether or not this event has the attribute.
var taken = map[string]bool{
	"specversion": true, "id": true, "source": true, "type": true, "subject": true, "time": true,
	"datacontenttype": true, "dataschema": true, "data": true,
	"trackingid": true, "dedupekey": true, "fencingtoken": true, "attempt": true,
	"outboxnamespace": true, "topic": true, "aggregatetype": true, "aggregateid": true,
	"tenantid": true, "sequence": true, "aggregatesequence": true, "partitionkey": true,
}

func addHeaders(x map[string]any, headers map[string]string) {
	// Sorted, so that names which collide get the same numbers at each delivery.
	names := slices.Sorted(maps.Keys(headers))
	for _, own := range []bool{true, false} { // a header whose name is an attribute's keeps it
		for _, header := range names {
			base := attributeName(header)
			if (base == header) != own {
				continue
			}
			name := base
			for n := 2; x[name] != nil; n++ {
				name = base + strconv.Itoa(n)
			}
			x[name] = text(headers[header])
		}
	}
}

// attributeName is the name of a header's attribute before collisions between headers are solved.
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
	if name == "" || taken[name] {
		return "header" + name
	}
	return name
}

// text replaces what CloudEvents forbids in a String.
func text(s string) string {
	if isPrintableASCII(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x20, 0x7F <= r && r <= 0x9F, // control characters
			0xFDD0 <= r && r <= 0xFDEF, r&0xFFFE == 0xFFFE: // non-characters
			return utf8.RuneError
		default:
			return r // a byte that is not UTF-8 comes as RuneError
		}
	}, s)
}

func isPrintableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7E {
			return false
		}
	}
	return true
}

// PercentEncode encodes an attribute's value for a header of the CloudEvents bindings of HTTP and NATS
// (section 3.1.3.2 of both).
func PercentEncode(s string) string {
	must := func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }
	n := 0
	for i := range len(s) {
		if must(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; must(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}`)

// Trace calls set with the W3C headers traceparent and tracestate of the event's trace context, if it has
// one. Sinks send them under these very names in addition to the attributes, because what instruments consumers
// looks for them and not for CloudEvents'.
func Trace(e *dispatcher.Event, set func(name, value string)) {
	parent, state := e.Headers["traceparent"], e.Headers["tracestate"]
	if !traceparent.MatchString(parent) || !isPrintableASCII(parent) {
		return
	}
	set("traceparent", parent)
	if state != "" && isPrintableASCII(state) {
		set("tracestate", state)
	}
}

// Unwritable is the error for an event that no message of the sink can be made of. No attempt can, so the
// event is dead at once.
func Unwritable(sink string, e *dispatcher.Event, err error) error {
	return reason.Coded(reason.Unwritable, dispatcher.Permanent(dispatcher.ReasonPermanentFailure,
		fmt.Errorf("%s: event %s cannot be written as a CloudEvent: %w; correct the row", sink, e.ID, err)))
}

// Attributes calls set with each attribute of a message in the binary mode, datacontenttype among them, in its
// canonical text form. It fails when one has none.
func Attributes(e event.Event, set func(name, value string)) error {
	return (*binding.EventMessage)(&e).ReadBinary(context.Background(), writer(set))
}

// writer takes the attributes of an event, and leaves its data out.
type writer func(name, value string)

func (w writer) SetAttribute(a spec.Attribute, value any) error {
	return w.SetExtension(a.Name(), value)
}

func (w writer) SetExtension(name string, value any) error {
	text, err := types.Format(value)
	if err == nil {
		w(name, text)
	}
	return err
}

func (writer) Start(context.Context) error { return nil }
func (writer) SetData(io.Reader) error     { return nil }
func (writer) End(context.Context) error   { return nil }

// JSON is the event in the JSON format of CloudEvents: the body of the structured mode. It fails as its writer does.
func JSON(e event.Event) ([]byte, error) {
	var body bytes.Buffer
	err := event.WriteJson(&e, &body)
	return body.Bytes(), err
}
