package nats_test

import (
	"context"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
)

// What was confirmed is there after kill -9 and after a restart, at the same address.
func TestKillAndRestart(t *testing.T) {
	for _, sync := range []bool{false, true} {
		s, err := nats.Start(t.Context(), nats.Options{Sync: sync})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		address := s.Address()
		js := connect(t, s)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "kept", []byte("one")); err != nil {
			t.Fatal(err)
		}
		for _, stop := range []func(){s.Kill, func() {}} {
			stop()
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			stream, err := connect(t, s).Stream(t.Context(), "kept")
			if err != nil {
				t.Fatal(err)
			}
			if n := stream.CachedInfo().State.Msgs; n != 1 || s.Address() != address {
				t.Errorf("%d messages at %s, want one at %s", n, s.Address(), address)
			}
		}
	}
}

func TestSettingsAreRefused(t *testing.T) {
	_, err := nats.Start(t.Context(), nats.Options{Settings: "nonsense: true"})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("the error does not say what the server complains of: %v", err)
	}
}

// The servers' own tool reaches them.
func TestClusterIsReachedByItsTool(t *testing.T) {
	servers, err := nats.StartCluster(t.Context(), 3, nats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range servers {
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	js := connect(t, servers[1])
	for {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Replicas: 3})
		if err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	cmd, err := servers[2].Tool(t.Context(), "pub", "--jetstream", "orders", "one")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nats pub: %v: %s", err, out)
	}
}

func connect(t *testing.T, s *nats.Server) jetstream.JetStream {
	t.Helper()
	conn, err := client.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
