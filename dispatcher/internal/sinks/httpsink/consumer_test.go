package httpsink

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// Planted where they must never come out again (CONTRACT C-73). verify looks for them.
const (
	payloadSecret = "payload-4111"
	querySecret   = "query-4222"
	headerSecret  = "header-4333"
	tokenSecret   = "token-4444"
)

func newEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Seq: 1, Namespace: "shop", Topic: "orders", Attempt: 1,
		Payload: []byte(`{"secret":"` + payloadSecret + `"}`), CreatedAt: time.Unix(1_770_000_000, 0),
	}
}

// plant returns a configuration for address with every secret in its place.
func plant(t *testing.T, scheme, address string) config.HTTPSink {
	return config.HTTPSink{
		URL:     scheme + "://" + address + "/events?key=" + querySecret,
		Headers: map[string]string{"X-Key": headerSecret},
		Access: config.Access{
			Auth:    &config.Auth{Type: config.AuthToken, SecretFile: file(t, "token", tokenSecret+"\n")},
			Timeout: config.Duration(20 * time.Second),
		},
	}
}

func open(t *testing.T, cfg config.HTTPSink) *sink {
	t.Helper()
	return openRouted(t, cfg, nil)
}

func openRouted(t *testing.T, cfg config.HTTPSink, route func(*dispatcher.Event) (string, error)) *sink {
	t.Helper()
	s, err := build(cfg, route)
	if err != nil {
		t.Fatal(err)
	}
	// Each use looks at the files.
	s.authorization.Every, s.signing.Every, s.client.Every = 0, 0, 0
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	return s
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, content)
	return path
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func post(t *testing.T, s *sink) error {
	t.Helper()
	return verify(t, s.Deliver(t.Context(), []*dispatcher.Event{newEvent()})[0])
}

// verify checks what holds for every error of this package: a remedy, and no secret.
func verify(t *testing.T, err error) error {
	t.Helper()
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range []string{payloadSecret, querySecret, headerSecret, tokenSecret, "?"} {
		if strings.Contains(text, secret) {
			t.Errorf("the error holds %q: %s", secret, text)
		}
	}
	if strings.Contains(text, "\n") || !strings.Contains(text, "; ") && !strings.Contains(text, "interrupted") {
		t.Errorf("the error must be one line with a remedy behind a semicolon: %s", text)
	}
	return err
}

// serve serves on address, or on a free port when it is empty, until the test or stop ends it.
func serve(t *testing.T, address string, tlsConfig *tls.Config, handler http.Handler) (at string, stop func()) {
	t.Helper()
	return serveWith(t, address, tlsConfig, handler, nil)
}

func serveWith(t *testing.T, address string, tlsConfig *tls.Config, handler http.Handler, watch func(net.Conn, http.ConnState)) (at string, stop func()) {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	at = listener.Addr().String()
	server := &http.Server{Handler: handler, TLSConfig: tlsConfig, ErrorLog: quiet, ConnState: watch}
	var wg sync.WaitGroup
	wg.Go(func() {
		if tlsConfig == nil {
			_ = server.Serve(listener)
		} else {
			_ = server.ServeTLS(listener, "", "")
		}
	})
	stop = sync.OnceFunc(func() {
		_ = server.Close()
		wg.Wait()
	})
	t.Cleanup(stop)
	return at, stop
}

// consumer takes events, reading them with the CloudEvents SDK.
type consumer struct {
	t       *testing.T
	waiting chan struct{}

	mu      sync.Mutex
	hang    bool
	refused map[string]bool
	arrived []sinktest.Message
}

func (c *consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	messages, err := readEvents(c.t, r)
	switch {
	case err != nil && r.Context().Err() != nil:
		return // the server was stopped meanwhile
	case err != nil:
		c.t.Errorf("the request holds no CloudEvent: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hang {
		c.waiting <- struct{}{}
		<-r.Context().Done()
		return
	}
	for _, m := range messages {
		if c.refused[m.Attributes["id"]] {
			http.Error(w, "refused", http.StatusUnprocessableEntity)
			return
		}
	}
	c.arrived = append(c.arrived, messages...)
	w.WriteHeader(http.StatusNoContent)
}

func readEvents(t *testing.T, r *http.Request) (got []sinktest.Message, err error) {
	if r.Method != http.MethodPost || r.URL.Path != "/events" {
		return nil, fmt.Errorf("%s %s", r.Method, r.URL.Path)
	}
	if !cehttp.IsHTTPBatch(r.Header) {
		for name, values := range r.Header { // which the SDK leaves to its caller
			if text, err := url.PathUnescape(values[0]); err == nil && strings.HasPrefix(name, "Ce-") {
				r.Header[name] = []string{text}
			}
		}
		m := sinktest.MessageOf(t, cehttp.NewMessageFromHttpRequest(r))
		// The server sees that the client disconnects only when the body was read.
		_, err := io.Copy(io.Discard, r.Body)
		return append(got, m), err
	}
	events, err := cehttp.NewEventsFromHTTPRequest(r)
	for i := range events {
		got = append(got, sinktest.MessageOf(t, binding.ToMessage(&events[i])))
	}
	return got, err
}

// destination is a consumer as sinktest.Exercise drives it.
func destination(t *testing.T, cfg config.HTTPSink, tlsConfig *tls.Config) sinktest.Destination {
	c := &consumer{t: t, refused: map[string]bool{}, waiting: make(chan struct{}, 1)}
	idle := &idleConns{conns: map[net.Conn]bool{}}
	idle.changed.L = &idle.mu
	serve := func(address string) (string, func()) { return serveWith(t, address, tlsConfig, c, idle.watch) }
	address, stop := serve("")
	scheme := "http"
	if tlsConfig != nil {
		scheme = "https"
	}
	cfg.URL = scheme + "://" + address + "/events"
	return sinktest.Destination{
		Sink:    open(t, cfg),
		Refuse:  func(id uuid.UUID) { c.refused[id.String()] = true },
		Refused: dispatcher.Cause{Class: "http", Code: "422"},
		Stop:    func() { stop() },
		Start:   func() { _, stop = serve(address) },
		Idle:    idle.close,
		Cannot:  map[string]string{"Missing": "a response of 404 may be about one event"},
		Hang: func() <-chan struct{} {
			c.hang = true
			return c.waiting
		},
		Arrived: func() []sinktest.Message {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.arrived
		},
	}
}

// idleConns are the connections of a server that wait for a request.
type idleConns struct {
	mu      sync.Mutex
	changed sync.Cond
	conns   map[net.Conn]bool
}

func (i *idleConns) watch(c net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if delete(i.conns, c); state == http.StateIdle {
		i.conns[c] = true
	}
	i.changed.Broadcast()
}

// close ends them as a server does after its timeout, and waits until the client has ended them too.
func (i *idleConns) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for c := range i.conns {
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}
	for len(i.conns) > 0 {
		i.changed.Wait()
	}
}

// quiet is for servers whose handshakes are meant to fail.
var quiet = log.New(io.Discard, "", 0)
