package kafkasink

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	names "github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const contentType = "content-type"

// record returns the event as a record (CONTRACT C-70, C-71). Its time is that of the sending, so
// that a topic's retention counts from then; the event's own is in ce_time. since is when the event was there.
func (s *sink) record(ctx context.Context, since time.Time, e *dispatcher.Event) (*kgo.Record, error) {
	topic, err := s.destination(e)
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("kafka sink: %w", err))
	}
	if !validTopic(topic) {
		return nil, reason.Routed(fmt.Errorf("kafka sink: %q is not a name that a Kafka topic can have; set topic to one of A-Z, a-z, 0-9, dots, dashes and underscores", topic))
	}
	r := &kgo.Record{Topic: topic, Key: []byte(e.Key())}
	ce := cloudevent.New(e)
	if s.mode == spec.Structured {
		var body bytes.Buffer
		err = event.WriteJson(&ce, &body)
		r.Value = body.Bytes()
		r.Headers = []kgo.RecordHeader{{Key: contentType, Value: []byte(event.ApplicationCloudEventsJSON)}}
	} else {
		if r.Value, err = s.value(ctx, since, topic, e); err != nil {
			return nil, fmt.Errorf("kafka sink: %w", err)
		}
		if s.encoder != nil {
			ce.SetDataContentType(s.encoder.ContentType())
		}
		if !e.Message.Bare {
			r.Headers = make([]kgo.RecordHeader, 0, 20+2*len(e.Headers)+len(e.Message.Headers))
			err = (*binding.EventMessage)(&ce).ReadBinary(ctx, (*headers)(r))
		}
	}
	if err != nil {
		return nil, cloudevent.Unwritable("kafka sink", e, err)
	}
	cloudevent.OtherHeaders("kafka", e, (*headers)(r).add)
	return r, nil
}

// value is the payload, encoded if it is to be.
func (s *sink) value(ctx context.Context, since time.Time, topic string, e *dispatcher.Event) ([]byte, error) {
	if s.encoder == nil {
		return e.Payload, nil
	}
	return s.encoder.Encode(ctx, since, cmp.Or(s.subject, topic+"-value"), e.Payload)
}

// validTopic is Kafka's own rule.
func validTopic(name string) bool {
	return len(name) >= 1 && len(name) <= 249 && name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// headers takes an event's attributes in the binary mode of the CloudEvents Kafka binding.
type headers kgo.Record

var _ binding.BinaryWriter = (*headers)(nil)

func (h *headers) SetAttribute(a names.Attribute, value any) error {
	if a.Kind() == names.DataContentType {
		h.add(contentType, value.(string))
		return nil
	}
	return h.SetExtension(a.Name(), value)
}

func (h *headers) SetExtension(name string, value any) error {
	text, err := types.Format(value)
	if err != nil {
		return err
	}
	h.add("ce_"+name, text)
	return nil
}

func (h *headers) add(key, value string) {
	h.Headers = append(h.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
}

func (*headers) Start(context.Context) error { return nil }
func (*headers) SetData(io.Reader) error     { return nil }
func (*headers) End(context.Context) error   { return nil }

// kgoVersion is the version of this module's build, as brokers list it among their clients' software.
func kgoVersion() string {
	const module = "github.com/outbox-operator/outbox-operator"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "" && m.Version != "(devel)" {
				return m.Version
			}
		}
	}
	return "unknown"
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. The registry is queried for the schema of an encoding.
func (s *sink) Draft(ctx context.Context, e *dispatcher.Event) (draft.Message, error) {
	r, err := s.record(ctx, time.Now(), e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "topic " + r.Topic, At: s.brokers, Key: string(r.Key), Body: r.Value, Headers: make(map[string]string, len(r.Headers))}
	for _, h := range r.Headers {
		name := h.Key
		for n := 2; m.Headers[name] != ""; n++ { // a record may have two of a name
			name = fmt.Sprintf("%s %d", h.Key, n)
		}
		m.Headers[name] = string(h.Value)
	}
	return m, nil
}
