package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestResolveStaysOnTheConfiguredHost(t *testing.T) {
	const elsewhere, climbs, noPath = "leads to another host than https://h:8443", "has a segment . or ..", "is not a path"
	for route, want := range map[string]string{
		"":                           "https://h:8443/a/b?key=1",
		"orders":                     "https://h:8443/a/orders?key=1",
		"orders/placed?x=2":          "https://h:8443/a/orders/placed?x=2",
		"/orders#part":               "https://h:8443/orders?key=1",
		"/a%20b%2Fc":                 "https://h:8443/a%20b%2Fc?key=1",
		"https://h:8443/x":           "https://h:8443/x?key=1",
		"https://other.example/x":    elsewhere,
		"//other.example/x":          elsewhere,
		"http://h:8443/x":            elsewhere,
		"https://h/x":                elsewhere,
		"https://h:8443@other/x":     elsewhere,
		"https://user@h:8443/x":      elsewhere,
		"https:orders":               elsewhere,
		"javascript:x":               elsewhere,
		"../admin":                   climbs,
		"orders/%2e%2E/admin":        climbs,
		"orders/..%2fadmin":          climbs,
		"a:b":                        elsewhere, // a scheme
		"orders\r\nX-Injected: true": noPath,
		"%zz":                        noPath,
	} {
		base, err := url.Parse("https://h:8443/a/b?key=1")
		need.OK(t, err)
		switch u, err := resolve(base, route); {
		case strings.HasPrefix(want, "https:") && (err != nil || u.String() != want):
			t.Errorf("%q leads to %v, %v; want %s", route, u, err, want)
		case !strings.HasPrefix(want, "https:") && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q leads to %v, %v; want an error that begins with %q", route, u, err, want)
		}
	}
}

// Events go where their routes lead, those of a batch together; one without a destination fails alone.
//
// CONTRACT: C-29, C-73
func TestRoutedEventsShareABatch(t *testing.T) {
	var mu sync.Mutex
	var requests []string
	arrived := map[string]string{} // the path of each event, by id
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := *r.URL
		r.URL = &url.URL{Path: "/events"}
		messages, err := readEvents(t, r)
		need.Want(t, nil, "%v", err)
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, at.String())
		if at.Path == "/c" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for _, m := range messages {
			arrived[m.Attributes["id"]] = at.String()
		}
	}))
	routes := []string{"a", "b", "a", "//elsewhere.invalid/" + sinktest.PayloadSecret, "b", "c", ""}
	for mode, calls := range map[spec.ContentMode]int{spec.Batch: 3, spec.Binary: 5} {
		requests = nil
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		var batch []*dispatcher.Event
		byID := map[*dispatcher.Event]string{}
		for _, route := range routes {
			e := sinktest.NewEvent()
			batch, byID[e] = append(batch, e), route
		}
		s := openRouted(t, cfg, func(e *dispatcher.Event) (string, error) {
			if byID[e] == "" {
				return "", errors.New("no route for topic orders; add one")
			}
			return byID[e], nil
		})
		errs := s.Deliver(t.Context(), batch)
		for i, e := range batch {
			err := sinktest.Verify(t, errs[i])
			if failed := i == 3 || i == 5 || i == 6; (err != nil) != failed || dispatcher.IsUnavailable(err) {
				t.Errorf("mode %s: event %d, route %q: %v", mode, i, routes[i], err)
			}
			want := "/" + routes[i] + "?key=" + sinktest.WrongSecret
			need.That(t, err != nil || arrived[e.ID.String()] == want, "mode %s: event %d arrived at %q, want %q", mode, i, arrived[e.ID.String()], want)
		}
		need.That(t, len(requests) == calls, "mode %s: %d requests, want %d: %q", mode, len(requests), calls, requests)
		for i, text := range map[int]string{3: "leads to another host than http://" + address + ";", 5: "http://" + address + "/c responded 503", 6: "no route for topic orders"} {
			need.That(t, strings.Contains(errs[i].Error(), text), "mode %s: the error of event %d does not say %q: %v", mode, i, text, errs[i])
		}
	}
}

// No more requests are under way than maxConnections, over no more connections, and those that wait
// neither time out nor outlive their context.
func TestMaxConnectionsBoundsRequests(t *testing.T) {
	const bound, events = 3, 24
	var mu sync.Mutex
	connections := map[string]bool{}
	arrived, result := make(chan struct{}), make(chan struct{})
	address, _ := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.RemoteAddr] = true
		mu.Unlock()
		arrived <- struct{}{}
		<-result
	}))
	cfg := plant(t, "http", address)
	cfg.MaxConnections = bound
	s := open(t, cfg)
	var wg sync.WaitGroup
	for range events {
		wg.Go(func() {
			need.Want(t, nil, "%v", sinktest.Send(t, s))
		})
	}
	for range events / bound {
		for range bound {
			<-arrived
		}
		// All slots are taken: one more waits, and goes when its context does.
		need.Want(t, bound, "%d requests are under way, want %d", len(s.slots))
		select {
		case <-arrived:
			t.Errorf("a request came above maxConnections")
		default:
		}
		for range bound {
			result <- struct{}{}
		}
	}
	wg.Wait()
	need.That(t, len(connections) <= bound, "%d connections, want at most %d", len(connections), bound)
}

// A request that waits for a slot is interrupted, and never sent.
func TestInterruptedWaitForASlotSendsNothing(t *testing.T) {
	c := &consumer{t: t}
	address, _ := serve(t, "", nil, c)
	cfg := plant(t, "http", address)
	cfg.MaxConnections = 1
	s := open(t, cfg)
	s.slots <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Deliver(ctx, []*dispatcher.Event{sinktest.NewEvent()})[0] }()
	cancel()
	err := sinktest.Verify(t, <-result)
	need.That(t, errors.Is(err, ctx.Err()) && !dispatcher.IsUnavailable(err), "got %v", err)
	<-s.slots
	need.Want(t, nil, "%v", sinktest.Send(t, s))
	need.Want(t, 1, "%d events arrived, want 1", len(c.arrived))
}

// plant returns a configuration for address with every secret in its place.
func plant(t *testing.T, scheme, address string) spec.HTTPSink {
	return spec.HTTPSink{
		URL:     scheme + "://" + address + "/events?key=" + sinktest.WrongSecret,
		Headers: []spec.HTTPHeader{{Name: "X-Key", Value: sinktest.WrongSecret}},
		Access: spec.Access{
			Auth:    &spec.Auth{Type: spec.AuthToken, SecretFile: sinktest.File(t, "token", sinktest.PasswordSecret+"\n")},
			Timeout: spec.Duration(20 * time.Second),
		},
	}
}

func open(t *testing.T, cfg spec.HTTPSink) *sink {
	t.Helper()
	return openRouted(t, cfg, nil)
}

func openRouted(t *testing.T, cfg spec.HTTPSink, route func(*dispatcher.Event) (string, error)) *sink {
	t.Helper()
	s, err := build(cfg, route)
	need.OK(t, err)
	// Each use looks at the files.
	s.authorization.Every, s.signing.Every, s.client.Every = 0, 0, 0
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	return s
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
	need.OK(t, err)
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
func destination(t *testing.T, cfg spec.HTTPSink, tlsConfig *tls.Config) sinktest.Destination {
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
