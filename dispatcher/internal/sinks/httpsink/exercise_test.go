package httpsink

import (
	"crypto/tls"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestHTTPSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []config.ContentMode{config.Binary, config.Structured, config.Batch} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				return destination(t, config.HTTPSink{Access: config.Access{ContentMode: mode}}, nil)
			})
		})
	}
	t.Run("HTTP2", func(t *testing.T) {
		ca := sinktest.NewAuthority(t, "test")
		cert := ca.Sign(t, "server", sinktest.InAnHour())
		sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
			cfg := config.HTTPSink{Access: config.Access{TLS: &config.TLS{CAFile: file(t, "ca.crt", ca.PEM)}}}
			return destination(t, cfg, &tls.Config{Certificates: []tls.Certificate{cert.TLS}, NextProtos: []string{"h2"}})
		})
	})
}

// What is sent over the wire, in addition to what the SDK reads from it.
func TestRequestHasTheDocumentedForm(t *testing.T) {
	requests := make(chan *http.Request, 1)
	dumps := make(chan string, 1)
	address, _ := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		dump, _ := httputil.DumpRequest(r, true)
		requests <- r
		dumps <- string(dump)
	}))
	e := newEvent()
	e.EventType = `a "b" 100% é` + "\n"
	for _, test := range []struct {
		mode              config.ContentMode
		contentType, body string
	}{
		{"", "application/json", string(e.Payload)},
		{config.Structured, "application/cloudevents+json", `{"specversion":"1.0",`},
		{config.Batch, "application/cloudevents-batch+json", `[{"specversion":"1.0",`},
	} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = test.mode
		if err := open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
			t.Fatal(err)
		}
		r, dump := <-requests, <-dumps
		want := map[string]string{
			"Content-Type": test.contentType, "X-Key": headerSecret, "Authorization": "Bearer " + tokenSecret,
		}
		if test.mode == "" {
			// CloudEvents HTTP binding, 3.1.3.2; the line break is not allowed in a String.
			want["Ce-Type"] = "a%20%22b%22%20100%25%20%C3%A9%EF%BF%BD"
		}
		for name, value := range want {
			if got := r.Header.Get(name); got != value {
				t.Errorf("mode %s: header %s is %q, want %q", test.mode, name, got, value)
			}
		}
		if agent := r.Header.Get("User-Agent"); agent != "outbox-dispatcher" && !strings.HasPrefix(agent, "outbox-dispatcher/") {
			t.Errorf("the User-Agent is %q", agent)
		}
		if r.URL.RawQuery != "key="+querySecret {
			t.Errorf("the query is %q; it must be that of the configuration", r.URL.RawQuery)
		}
		if _, body, _ := strings.Cut(dump, "\r\n\r\n"); !strings.HasPrefix(body, test.body) || r.ContentLength != int64(len(body)) {
			t.Errorf("mode %s: the body is %q, want it to start with %q, and its length in a header", test.mode, body, test.body)
		}
	}
}

// Connections are kept, as many as there are workers: none opens one for each event.
func TestConnectionsAreKept(t *testing.T) {
	const workers, rounds = 16, 5
	var mu sync.Mutex
	connections := map[string]bool{}
	arrived, result := make(chan struct{}), make(chan struct{})
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.RemoteAddr] = true
		mu.Unlock()
		arrived <- struct{}{}
		<-result
		_, _ = w.Write([]byte(strings.Repeat("a long response ", 100)))
	}))
	s := open(t, plant(t, "http", address))
	for range rounds {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				if err := post(t, s); err != nil {
					t.Error(err)
				}
			})
		}
		for range workers { // all at once, so that each has a connection of its own
			<-arrived
		}
		for range workers {
			result <- struct{}{}
		}
		wg.Wait()
	}
	if len(connections) != workers {
		t.Errorf("%d connections for %d workers and %d events", len(connections), workers, workers*rounds)
	}
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// A whole outbox arrives in the order of its keys, though the server cuts all connections half-way and is
// gone for a moment.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	for _, mode := range []config.ContentMode{config.Binary, config.Batch} {
		t.Run(string(mode), func(t *testing.T) {
			d := destination(t, config.HTTPSink{Access: config.Access{ContentMode: mode}}, nil)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: d.Sink, Events: events, Keys: 1000, Arrived: d.Arrived,
				Halfway: func() { d.Stop(); d.Start() },
			})
		})
	}
}
