package kafkasink

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// CONTRACT: C-32, C-70, C-71, C-73
// REQUIREMENT: STORAGE-28, STORAGE-33
func TestKafkaSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				d := destination(t, config.KafkaSink{Access: config.Access{ContentMode: mode}})
				if mode == config.Structured { // it decides how a record is written, not how a broker is found again
					d.Stop, d.Start, d.Cannot = nil, nil, map[string]string{"Stop": "that of Binary is the same"}
				}
				return d
			})
		})
	}
}

// destination is a topic of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, cfg config.KafkaSink) sinktest.Destination {
	topic := newTopic(t, 3)
	cfg.Brokers, cfg.Topic = []string{broker(t).Address(kafka.Plain)}, topic
	s := open(t, cfg)
	relayed, closeAll := sinktest.Relayed(t, s.dial)
	s.dial = relayed
	timeout := s.timeout
	var restart func()
	refused := map[uuid.UUID]bool{}
	s.destination = func(e *dispatcher.Event) (string, error) {
		if refused[e.ID] {
			return "missing-" + topic, nil
		}
		return topic, nil
	}
	return sinktest.Destination{
		Sink:    s,
		Refuse:  func(id uuid.UUID) { refused[id] = true },
		Refused: dispatcher.Cause{Class: "kafka", Code: "UNKNOWN_TOPIC_OR_PARTITION"},
		// The record that finds the broker dead may have been sent, and is waited for.
		Stop:  func() { restart = sinktest.Kill(t, theBroker.Broker); s.timeout = time.Second },
		Start: func() { restart(); s.timeout = timeout },
		Idle:  closeAll,
		Missing: func() func() {
			if _, err := theBroker.admin.DeleteTopics(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
			return func() {
				if _, err := theBroker.admin.CreateTopic(t.Context(), 3, 1, nil, topic); err != nil {
					t.Fatal(err)
				}
				ends(t, topic)
			}
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, theBroker.Broker, (*sinktest.Dial)(&s.dial), isProduce)
		},
		Arrived: func() (got []sinktest.Message) {
			for _, r := range consume(t, topic) {
				got = append(got, message(t, r))
			}
			return got
		},
	}
}

// message reads a record as the CloudEvents Kafka binding says. Its names are those of the HTTP
// binding with other prefixes, and the SDK reads that one without any client of Kafka.
func message(t *testing.T, r *kgo.Record) sinktest.Message {
	h := http.Header{}
	for _, header := range r.Headers {
		h.Set(strings.Replace(header.Key, "ce_", "ce-", 1), string(header.Value))
	}
	m := sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(r.Value))))
	if key := m.Attributes["partitionkey"]; sinktest.Arrives(string(r.Key)) != key { // the record's is as it is in the row
		t.Errorf("the record's key is %q, want the event's %q", r.Key, key)
	}
	return m
}
