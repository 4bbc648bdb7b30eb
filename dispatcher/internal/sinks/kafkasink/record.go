package kafkasink

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
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
	topic, err := s.topic.Of(e)
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("kafka sink: %w", err))
	}
	if !validTopic(topic) {
		return nil, reason.Routed(fmt.Errorf("kafka sink: %q is not a name that a Kafka topic can have; set topic to one of A-Z, a-z, 0-9, dots, dashes and underscores", topic))
	}
	r := &kgo.Record{Topic: topic, Key: []byte(e.Key())}
	ce := cloudevent.New(e)
	if s.mode == spec.Structured {
		r.Value, err = cloudevent.JSON(ce)
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
			err = cloudevent.Attributes(ce, (*headers)(r).attribute)
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

func (h *headers) attribute(name, value string) {
	if name == "datacontenttype" {
		h.add(contentType, value)
	} else {
		h.add("ce_"+name, value)
	}
}

func (h *headers) add(key, value string) {
	h.Headers = append(h.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. The registry is queried for the schema of an encoding.
func (s *sink) Draft(ctx context.Context, e *dispatcher.Event) (draft.Message, error) {
	r, err := s.record(ctx, time.Now(), e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "topic " + r.Topic, At: s.At, Key: string(r.Key), Body: r.Value, Headers: make(map[string]string, len(r.Headers))}
	for _, h := range r.Headers {
		name := h.Key
		for n := 2; m.Headers[name] != ""; n++ { // a record may have two of a name
			name = fmt.Sprintf("%s %d", h.Key, n)
		}
		m.Headers[name] = string(h.Value)
	}
	return m, nil
}
