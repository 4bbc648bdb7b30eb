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
)

// CONTRACT: C-32, C-70, C-71, C-73
// REQUIREMENT: STORAGE-28, STORAGE-33
func TestExercise(t *testing.T) {
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return destination(t, mode) })
		})
	}
}

// destination is a topic of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, mode config.ContentMode) sinktest.Destination {
	topic := newTopic(t, 3)
	cfg := plainConfig(t, topic)
	cfg.ContentMode = mode
	s := open(t, cfg)
	relayed, closeAll := sinktest.Relayed(t, s.dial)
	s.dial = relayed
	patience := s.timeout
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
		Stop:  func() { kill(t); s.timeout = time.Second },
		Start: func() { restart(t); s.timeout = patience },
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
			waiting := make(chan struct{}, 1)
			s.watch(func(request []byte) {
				if isProduce(request) {
					select {
					case waiting <- struct{}{}:
					default:
					}
				}
			})
			if err := send(t, s); err != nil { // makes the connections
				t.Fatal(err)
			}
			<-waiting
			theBroker.Pause()
			t.Cleanup(theBroker.Resume)
			return waiting
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
