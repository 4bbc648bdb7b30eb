package natssink

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// CONTRACT: C-32, C-70, C-73
func TestNATSSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				return destination(t, config.NATSSink{Access: config.Access{ContentMode: mode}})
			})
		})
	}
}

// destination is a stream of the real server as sinktest.Exercise drives it.
func destination(t *testing.T, cfg config.NATSSink) sinktest.Destination {
	srv := server(t)
	stream := newStream(t, srv, nil)
	cfg.Servers, cfg.Subject = []string{srv.URL()}, stream+".events"
	s := open(t, cfg)
	relayed, closeAll := sinktest.Relayed(t, s.dial)
	s.dial = relayed
	var restart func()
	refused := map[uuid.UUID]bool{}
	s.destination = func(e *dispatcher.Event) (string, error) {
		if refused[e.ID] {
			return "missing." + stream, nil
		}
		return cfg.Subject, nil
	}
	return sinktest.Destination{
		Sink:    s,
		Refuse:  func(id uuid.UUID) { refused[id] = true },
		Refused: dispatcher.Cause{Class: "nats", Code: "NoStream"},
		Stop:    func() { restart = sinktest.Kill(t, srv) },
		Start:   func() { restart() },
		Idle: func() {
			closeAll()
			<-s.current.gone
		},
		Missing: func() func() {
			if err := admin(t, srv).DeleteStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			return func() {
				_, err := admin(t, srv).CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}})
				if err != nil {
					t.Fatal(err)
				}
			}
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, srv, (*sinktest.Dial)(&s.dial), isPublish)
		},
		Arrived: func() (got []sinktest.Message) {
			for _, m := range consume(t, srv, stream) {
				got = append(got, message(t, m))
			}
			return got
		},
	}
}

// message reads a message as the CloudEvents NATS binding says. Its headers are those of the HTTP
// binding, and the SDK reads that one without any client of NATS.
func message(t testing.TB, m jetstream.Msg) sinktest.Message {
	h := http.Header{}
	for name, values := range m.Headers() {
		text, err := url.PathUnescape(values[0])
		if err != nil {
			t.Errorf("header %s is %q: %v", name, values[0], err)
		}
		if name != dataType {
			h.Set(name, text)
		}
	}
	got := sinktest.MessageOf(t.(*testing.T), cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(m.Data()))))
	if id := m.Headers().Get(messageID); id != got.Attributes["id"] {
		t.Errorf("the message's id is %q, want the event's %s", id, got.Attributes["id"])
	}
	return got
}

// What is in the headers, character by character.
//
// CONTRACT: C-70
func TestHeadersFollowTheProtocolBinding(t *testing.T) {
	srv := server(t)
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		stream := newStream(t, srv, nil)
		cfg := plainConfig(srv, stream)
		cfg.ContentMode, cfg.Stream, cfg.Timeout = mode, stream, config.Duration(5*time.Second)
		s := open(t, cfg)
		e := sinktest.NewEvent()
		e.EventType = "a \"b\" 100% é\nc"
		if err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
			t.Fatal(err)
		}
		want := map[string]string{messageID: e.ID.String(), expectedStream: stream, contentType: "application/cloudevents+json", dataType: "", "ce-type": ""}
		if mode == config.Binary {
			want[contentType], want[dataType] = "application/json", "application/json"
			want["ce-type"] = "a%20%22b%22%20100%25%20%C3%A9%EF%BF%BDc" // the line break is not allowed in a String
		}
		m := consume(t, srv, stream)[0]
		for name, value := range want {
			if got := m.Headers().Get(name); got != value {
				t.Errorf("mode %s: header %s is %q, want %q", mode, name, got, value)
			}
		}
		if mode == config.Binary && string(m.Data()) != string(e.Payload) {
			t.Errorf("the data is %s, want the payload", m.Data())
		}
	}
}
