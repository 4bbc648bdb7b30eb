package httpsink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Error(err)
		}
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
	routes := []string{"a", "b", "a", "//elsewhere.invalid/" + payloadSecret, "b", "c", ""}
	for mode, calls := range map[config.ContentMode]int{config.Batch: 3, config.Binary: 5} {
		requests = nil
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		var batch []*dispatcher.Event
		byID := map[*dispatcher.Event]string{}
		for _, route := range routes {
			e := newEvent()
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
			err := verify(t, errs[i])
			if failed := i == 3 || i == 5 || i == 6; (err != nil) != failed || dispatcher.IsUnavailable(err) {
				t.Errorf("mode %s: event %d, route %q: %v", mode, i, routes[i], err)
			}
			if want := "/" + routes[i] + "?key=" + querySecret; err == nil && arrived[e.ID.String()] != want {
				t.Errorf("mode %s: event %d arrived at %q, want %q", mode, i, arrived[e.ID.String()], want)
			}
		}
		if len(requests) != calls {
			t.Errorf("mode %s: %d requests, want %d: %q", mode, len(requests), calls, requests)
		}
		for i, text := range map[int]string{3: "leads to another host than http://" + address + ";", 5: "http://" + address + "/c responded 503", 6: "no route for topic orders"} {
			if !strings.Contains(errs[i].Error(), text) {
				t.Errorf("mode %s: the error of event %d does not say %q: %v", mode, i, text, errs[i])
			}
		}
	}
}

// No more requests are under way than maxConnections, over no more connections, and those that wait
// neither time out nor outlive their context.
func TestMaxConnections(t *testing.T) {
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
			if err := post(t, s); err != nil {
				t.Error(err)
			}
		})
	}
	for range events / bound {
		for range bound {
			<-arrived
		}
		// All slots are taken: one more waits, and goes when its context does.
		if len(s.slots) != bound {
			t.Errorf("%d requests are under way, want %d", len(s.slots), bound)
		}
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
	if len(connections) > bound {
		t.Errorf("%d connections, want at most %d", len(connections), bound)
	}
}

// A request that waits for a slot is interrupted, and never sent.
func TestMaxConnectionsInterrupted(t *testing.T) {
	c := &consumer{t: t}
	address, _ := serve(t, "", nil, c)
	cfg := plant(t, "http", address)
	cfg.MaxConnections = 1
	s := open(t, cfg)
	s.slots <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Deliver(ctx, []*dispatcher.Event{newEvent()})[0] }()
	cancel()
	if err := verify(t, <-result); !errors.Is(err, ctx.Err()) || dispatcher.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	<-s.slots
	if err := post(t, s); err != nil {
		t.Error(err)
	}
	if len(c.arrived) != 1 {
		t.Errorf("%d events arrived, want 1", len(c.arrived))
	}
}
