package natssink

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
)

// A server that is about to stop disconnects its clients: what is in flight ends there, what comes next
// goes to another one. Nothing is in doubt then. The server that leaves does not lead the stream: what a
// leader has not confirmed when it steps down is in doubt.
func TestLameDuck(t *testing.T) {
	cluster := newCluster(t)
	cfg := cluster.config()
	s := open(t, cfg)
	if err := sinktest.Send(t, s); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	old := s.current
	s.mu.Unlock()
	cluster.stepDown(t, old.conn.ConnectedServerName())
	cluster.leave(old.conn.ConnectedAddr())
	deadline := time.Now().Add(time.Minute)
	for !old.over() && time.Now().Before(deadline) {
		if err := sinktest.Send(t, s); err != nil && !strings.Contains(err.Error(), "no stream takes it") {
			t.Fatalf("while a server leaves: %v", err)
		}
	}
	if !old.over() {
		t.Error("the connection to the server that leaves is still in use")
	}
}

// Without a majority of its servers a stream confirms nothing, and what it confirmed before is there.
//
// CONTRACT: C-32
func TestNoQuorum(t *testing.T) {
	cluster := newCluster(t)
	cfg := cluster.config()
	s := open(t, cfg)
	if err := sinktest.Send(t, s); err != nil {
		t.Fatal(err)
	}
	s.timeout = 500 * time.Millisecond
	restart1, restart2 := sinktest.Kill(t, cluster[1]), sinktest.Kill(t, cluster[2])
	confirmed := 1
	for range 3 {
		// While the leader has not noticed, it is waited for; then there is none.
		err := sinktest.Send(t, s)
		if err == nil {
			t.Fatal("a message was confirmed by one server of three")
		}
		taken := !strings.Contains(err.Error(), "cannot connect") && !strings.Contains(err.Error(), "before the message was sent") &&
			!strings.Contains(err.Error(), "no stream takes it")
		if dispatcher.IsUnavailable(err) == taken {
			t.Errorf("a message that may have been taken counts as an attempt, and only that: %v", err)
		}
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
	if n := len(consume(t, cluster[0], "orders")); n < confirmed {
		t.Errorf("%d messages are there, and %d were confirmed", n, confirmed)
	}
}

// cluster is three servers, and a stream on all of them.
type cluster []*nats.Server

func newCluster(t *testing.T) cluster {
	c, err := nats.StartCluster(t.Context(), 3, nats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range c {
			s.Kill() // one that leaves takes its time
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	js := admin(t, c[0])
	for { // until the servers have found each other
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Replicas: 3})
		if err == nil {
			return c
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func (c cluster) config() config.NATSSink {
	var cfg config.NATSSink
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
