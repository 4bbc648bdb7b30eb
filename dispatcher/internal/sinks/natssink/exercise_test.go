package natssink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-32, C-70, C-73
func TestNATSSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				return destination(t, spec.NATSSink{Access: spec.Access{ContentMode: mode}})
			})
		})
	}
}

// destination is a stream of the real server as sinktest.Exercise drives it.
func destination(t *testing.T, cfg spec.NATSSink) sinktest.Destination {
	srv := server(t)
	stream := newStream(t, srv, nil)
	cfg.Servers, cfg.Subject = []string{srv.URL()}, stream+".events"
	s := open(t, cfg)
	relayed, closeAll := sinktest.Relayed(t, s.dial)
	s.dial = relayed
	var restart func()
	return sinktest.Destination{
		Sink:    s,
		Refuse:  sinktest.Divert(&s.subject.Of, "missing."+stream),
		Refused: dispatcher.Cause{Class: "nats", Code: "NoStream"},
		Stop:    func() { restart = sinktest.Kill(t, srv) },
		Start:   func() { restart() },
		Idle: func() {
			closeAll()
			<-s.current.gone
		},
		Remedy: "; create one that captures it, as with nats stream add --subjects " + stream,
		Missing: func() func() {
			need.OK(t, admin(t, srv).DeleteStream(t.Context(), stream))
			return func() {
				_, err := admin(t, srv).CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}})
				need.OK(t, err)
			}
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, srv, (*sinktest.Dial)(&s.dial), isPublish)
		},
		Arrived: func() []sinktest.Message { return sinktest.Messages(t, consume(t, srv, stream), message) },
	}
}

// message reads a message as the CloudEvents NATS binding says. Its headers are those of the HTTP
// binding, and the SDK reads that one without any client of NATS.
func message(t *testing.T, m jetstream.Msg) sinktest.Message {
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
	got := sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(m.Data()))))
	need.Want(t, got.Attributes["id"], "the message's id is %q, want the event's %s", m.Headers().Get(messageID))
	return got
}

// What is in the headers, character by character.
//
// CONTRACT: C-70
func TestHeadersFollowTheProtocolBinding(t *testing.T) {
	srv := server(t)
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		stream := newStream(t, srv, nil)
		cfg := plainConfig(srv, stream)
		cfg.ContentMode, cfg.Stream, cfg.Timeout = mode, stream, spec.Duration(5*time.Second)
		s := open(t, cfg)
		e := sinktest.NewEvent()
		e.EventType = "a \"b\" 100% é\nc"
		need.OK(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
		want := map[string]string{messageID: e.ID.String(), expectedStream: stream, contentType: "application/cloudevents+json", dataType: "", "ce-type": ""}
		if mode == spec.Binary {
			want[contentType], want[dataType] = "application/json", "application/json"
			want["ce-type"] = "a%20%22b%22%20100%25%20%C3%A9%EF%BF%BDc" // the line break is not allowed in a String
		}
		m := consume(t, srv, stream)[0]
		for name, value := range want {
			need.Want(t, value, "mode %s: header %s is %q, want %q", m.Headers().Get(name), mode, name)
		}
		if mode == spec.Binary && string(m.Data()) != string(e.Payload) {
			t.Errorf("the data is %s, want the payload", m.Data())
		}
	}
}

// A whole outbox through the engine into a stream, whose server is killed half-way. Another client reads
// it back: each event once, because the stream remembers the ids of what it stored and did not confirm.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	for name, opts := range map[string]nats.Options{"the server's own sync": {}, "sync always": {Sync: true}} {
		t.Run(name, func(t *testing.T) {
			events := events
			if opts.Sync {
				events /= 10 // each message is written through to the disk
			}
			srv := start(t, opts)
			stream := newStream(t, srv, func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "orders") })
			cfg := plainConfig(srv, stream)
			cfg.Subject, cfg.Stream = "", stream
			s, err := New(cfg, nil)
			need.OK(t, err)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: s, Events: events, Keys: 1000, Server: srv,
				Arrived: func() (got []sinktest.Message) {
					seen := map[string]bool{}
					for _, m := range consume(t, srv, stream) {
						one := message(t, m)
						if id := one.Attributes["id"]; seen[id] {
							t.Errorf("event %s is stored twice", id)
						} else {
							seen[id] = true
						}
						got = append(got, one)
					}
					return got
				},
			})
		})
	}
}

// The streams of the benchmarks are in files, on one real server: with the server's own sync, and with
// each message written through to the disk before it is confirmed.
var kinds = map[string]nats.Options{"sync=default": {}, "sync=always": {Sync: true}}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload:
// go test -run=- -bench=. -benchtime=200x ./dispatcher/internal/sinks/natssink
func BenchmarkDeliver(b *testing.B) {
	for kind, opts := range kinds {
		for _, workers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%s/workers=%d", kind, workers), func(b *testing.B) {
				srv := start(b, opts)
				sinktest.Bench(b, open(b, plainConfig(srv, newStream(b, srv, nil))), workers)
			})
		}
	}
}

// A server that is about to stop disconnects its clients: what is in flight ends there, what comes next
// goes to another one. Nothing is in doubt then. The server that leaves does not lead the stream: what a
// leader has not confirmed when it steps down is in doubt.
func TestLeavingServerGetsNothingNew(t *testing.T) {
	cluster := newCluster(t)
	cfg := cluster.config()
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	s.mu.Lock()
	old := s.current
	s.mu.Unlock()
	cluster.stepDown(t, old.conn.ConnectedServerName())
	cluster.leave(old.conn.ConnectedAddr())
	deadline := time.Now().Add(time.Minute)
	for !old.over() && time.Now().Before(deadline) {
		err := sinktest.Send(t, s)
		need.Must(t, err == nil || strings.Contains(err.Error(), "no stream takes it"), "while a server leaves: %v", err)
	}
	need.That(t, old.over(), "the connection to the server that leaves is still in use")
}

// Without a majority of its servers a stream confirms nothing, and what it confirmed before is there.
//
// CONTRACT: C-32
func TestStreamWithoutAQuorumConfirmsNothing(t *testing.T) {
	cluster := newCluster(t)
	cfg := cluster.config()
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	s.timeout = 500 * time.Millisecond
	restart1, restart2 := sinktest.Kill(t, cluster[1]), sinktest.Kill(t, cluster[2])
	confirmed := 1
	for range 3 {
		// While the leader has not noticed, it is waited for; then there is none.
		err := sinktest.Send(t, s)
		need.Must(t, err != nil, "a message was confirmed by one server of three")
		taken := !strings.Contains(err.Error(), "cannot connect") && !strings.Contains(err.Error(), "before the message was sent") &&
			!strings.Contains(err.Error(), "no stream takes it")
		need.That(t, dispatcher.IsUnavailable(err) != taken, "a message that may have been taken counts as an attempt, and only that: %v", err)
	}
	// The server that is left may not have noticed yet that it cannot say who takes the subject.
	s.timeout = time.Second
	if err := s.Probe(t.Context()); err != nil {
		sinktest.Want(t, "Probe of the server that is left", err, true, reason.ConnectionFailed, "; bring most of the servers back")
	}
	s.timeout = 10 * time.Second
	restart1()
	restart2()
	for sinktest.Send(t, s) != nil {
		if t.Context().Err() != nil {
			return
		}
	}
	confirmed++
	n := len(consume(t, cluster[0], "orders"))
	need.That(t, n >= confirmed, "%d messages are there, and %d were confirmed", n, confirmed)
}

// cluster is three servers, and a stream on all of them.
type cluster []*nats.Server

func newCluster(t *testing.T) cluster {
	c, err := nats.StartCluster(t.Context(), 3, nats.Options{})
	need.OK(t, err)
	t.Cleanup(func() {
		for _, s := range c {
			s.Kill() // one that leaves takes its time
			need.Want(t, nil, "%v", s.Stop(context.Background()))
		}
	})
	js := admin(t, c[0])
	for { // until the servers have found each other
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Replicas: 3})
		if err == nil {
			return c
		}
		need.Must(t, t.Context().Err() == nil, "%v", err)
	}
}

func (c cluster) config() spec.NATSSink {
	var cfg spec.NATSSink
	for _, s := range c {
		cfg.Servers = append(cfg.Servers, s.URL())
	}
	cfg.Subject = "orders.events"
	return cfg
}

// stepDown has another server than the named one lead the stream.
func (c cluster) stepDown(t *testing.T, name string) {
	js := admin(t, c[0])
	for t.Context().Err() == nil {
		stream, err := js.Stream(t.Context(), "orders")
		if err != nil {
			continue // there is no leader yet
		}
		if leader := stream.CachedInfo().Cluster.Leader; leader != "" && leader != name {
			return
		}
		if _, err := js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.orders", nil, time.Second); err != nil {
			t.Log(err)
		}
	}
}

func (c cluster) leave(address string) {
	for _, s := range c {
		if s.Address() == address {
			s.LameDuck()
		}
	}
}
