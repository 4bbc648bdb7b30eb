package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// CONTRACT: C-32, C-73
func TestResponseStatusDecidesTheOutcome(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC) // a server whose clock is wrong
	date := now.Format(http.TimeFormat)
	for _, test := range []struct {
		status      int
		retryAfter  string
		delivered   bool
		unavailable bool
		fault       bool
		pause       time.Duration
		word        string
	}{
		{status: 200, delivered: true},
		{status: 201, delivered: true},
		{status: 202, delivered: true},
		{status: 204, delivered: true},
		{status: 299, delivered: true},
		{status: 301, word: reason.Refusing},
		{status: 302, word: reason.Refusing},
		{status: 304, word: reason.Refusing},
		{status: 307, word: reason.Refusing},
		{status: 400, word: reason.Refusing},
		{status: 401, unavailable: true, word: reason.AuthenticationFailed},
		{status: 401, retryAfter: "7", unavailable: true, word: reason.AuthenticationFailed},
		{status: 403, word: reason.AuthenticationFailed},
		{status: 404, retryAfter: "7", word: reason.Refusing},
		{status: 405, word: reason.Refusing},
		{status: 407, unavailable: true, word: reason.AuthenticationFailed},
		{status: 408, word: reason.Refusing},
		{status: 409, word: reason.Refusing},
		{status: 413, word: reason.Refusing},
		{status: 415, word: reason.Refusing},
		{status: 422, word: reason.Refusing},
		{status: 425, retryAfter: "3", pause: 3 * time.Second, word: reason.Refusing},
		{status: 429, fault: true, word: reason.Refusing},
		{status: 429, fault: true, retryAfter: "7", pause: 7 * time.Second, word: reason.Refusing},
		{status: 429, fault: true, retryAfter: now.Add(90 * time.Second).Format(http.TimeFormat), pause: 90 * time.Second, word: reason.Refusing},
		{status: 429, fault: true, retryAfter: "soon", word: reason.Refusing},
		{status: 500, fault: true, word: reason.Refusing},
		{status: 502, fault: true, word: reason.Refusing},
		{status: 503, fault: true, retryAfter: "86400", pause: time.Hour, word: reason.Refusing},
		{status: 504, fault: true, word: reason.Refusing},
		{status: 507, fault: true, retryAfter: "60", pause: time.Minute, word: reason.Refusing}, // full
		{status: 599, fault: true, word: reason.Refusing},
	} {
		t.Run(fmt.Sprintf("%d %s", test.status, test.retryAfter), func(t *testing.T) {
			requests := 0
			address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				w.Header().Set("Location", "/elsewhere?"+sinktest.WrongSecret)
				w.Header().Set("Date", date)
				if test.retryAfter != "" {
					w.Header().Set("Retry-After", test.retryAfter)
				}
				w.WriteHeader(test.status)
				_ = r.Write(w) // the response echoes the request
			}))
			err := sinktest.Send(t, open(t, plant(t, "http", address)))
			need.Want(t, 1, "%d requests for one event", requests)
			if test.delivered {
				need.Want(t, nil, "not delivered: %v", err)
				return
			}
			need.Must(t, err != nil, "delivered")
			got := dispatcher.IsUnavailable(err)
			need.That(t, got == test.unavailable, "that the response spends no attempt: %t, want %t: %v", got, test.unavailable, err)
			got = dispatcher.IsDestinationFault(err)
			need.That(t, got == test.fault, "that the response is about the destination: %t, want %t: %v", got, test.fault, err)
			_, permanent := dispatcher.PermanentReason(err)
			need.That(t, permanent == (test.status == http.StatusRequestEntityTooLarge), "that the response is final: %t: %v", permanent, err)
			need.Want(t, test.pause, "the pause is %s, want %s", dispatcher.RetryAfterDelay(err))
			need.Want(t, test.word, "the reason is %s, want %s", reason.Of(err))
			want := fmt.Sprintf("http://%s/events responded %d ", address, test.status)
			need.That(t, strings.Contains(err.Error(), want), "the error does not say %q: %v", want, err)
		})
	}
}

func TestRetryAfterIsAPause(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	date := now.Format(http.TimeFormat)
	for _, test := range []struct {
		name, retryAfter, date string
		want                   time.Duration
		claimedAt              time.Time
	}{
		{"none", "", date, 0, time.Time{}},
		{"seconds", "30", "", 30 * time.Second, time.Time{}},
		{"zero", "0", date, 0, time.Time{}},
		{"negative", "-5", date, 0, time.Time{}},
		{"fraction", "1.5", date, 0, time.Time{}},
		{"more than an hour", "7200", date, time.Hour, time.Time{}},
		{"more than any integer", "99999999999999999999", date, time.Hour, time.Time{}},
		{"date", now.Add(time.Minute).Format(http.TimeFormat), date, time.Minute, time.Time{}},
		{"date, other format", now.Add(time.Minute).Format(time.ANSIC), date, time.Minute, time.Time{}},
		{"date in the past", now.Add(-time.Minute).Format(http.TimeFormat), date, 0, time.Time{}},
		{"date far ahead", now.Add(240 * time.Hour).Format(http.TimeFormat), date, time.Hour, time.Time{}},
		{"date without a Date", now.Add(time.Minute).Format(http.TimeFormat), "", time.Minute - time.Second, now.Add(time.Second)},
		{"date with a Date and another clock", now.Add(time.Minute).Format(http.TimeFormat), date, time.Minute, now.Add(time.Hour)},
		{"date without a clock", now.Add(time.Minute).Format(http.TimeFormat), "", 0, time.Time{}},
	} {
		h := http.Header{}
		h.Set("Retry-After", test.retryAfter)
		h.Set("Date", test.date)
		need.Want(t, test.want, "%s: %s, want %s", retryAfter(h, test.claimedAt), test.name)
	}
}

// With contentMode Batch the one response is every event's, unless it may be about a single one: then each is
// sent by itself, and gets its own response.
//
// CONTRACT: C-32
func TestBatchIsSplitWhereOneEventMayBeToBlame(t *testing.T) {
	var poison string
	var status, requests int
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		body, err := io.ReadAll(r.Body)
		need.Want(t, nil, "%v", err)
		if strings.Contains(string(body), poison) {
			w.WriteHeader(status)
		}
	}))
	cfg := plant(t, "http", address)
	cfg.ContentMode, cfg.BatchSize = spec.Batch, 3
	s := open(t, cfg)
	need.Want(t, 3, "BatchSize is %d, want 3", s.BatchSize())
	batch := sinktest.NewEvents(3)
	for _, test := range []struct {
		status, requests int
		failed           [3]bool
	}{
		{204, 1, [3]bool{}},
		{400, 4, [3]bool{1: true}},
		{409, 4, [3]bool{1: true}},
		{413, 4, [3]bool{1: true}},
		{422, 4, [3]bool{1: true}},
		{401, 1, [3]bool{true, true, true}},
		{404, 1, [3]bool{true, true, true}},
		{500, 1, [3]bool{true, true, true}},
	} {
		poison, status, requests = batch[1].ID.String(), test.status, 0
		errs := s.Deliver(t.Context(), batch)
		need.Must(t, len(errs) == 3 && requests == test.requests, "status %d: %d results after %d requests, want 3 after %d", status, len(errs), requests, test.requests)
		for i, err := range errs {
			need.That(t, (sinktest.Verify(t, err) != nil) == test.failed[i], "status %d: event %d got %v", status, i, err)
			_, permanent := dispatcher.PermanentReason(err)
			need.That(t, permanent == (test.failed[i] && test.status == 413), "status %d: that event %d is dead at once: %t", status, i, permanent)
		}
	}
}

// A token that expires between the requests of one delivery: what was taken before is delivered.
//
// CONTRACT: C-32
func TestExpiredTokenKeepsWhatWasTaken(t *testing.T) {
	var requests int
	statuses := []int{http.StatusBadRequest, http.StatusAccepted, http.StatusUnauthorized, http.StatusForbidden}
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(statuses[requests])
		requests++
	}))
	cfg := plant(t, "http", address)
	cfg.ContentMode = spec.Batch
	errs := open(t, cfg).Deliver(t.Context(), sinktest.NewEvents(3))
	need.That(t, sinktest.Verify(t, errs[0]) == nil, "an event that was taken: %v", errs[0])
	need.That(t, dispatcher.IsUnavailable(sinktest.Verify(t, errs[1])), "a response of 401 spends an attempt: %v", errs[1])
	need.That(t, sinktest.Verify(t, errs[2]) != nil && !dispatcher.IsUnavailable(errs[2]), "a response of 403 spends no attempt: %v", errs[2])
}

// The status is the response: a body that never ends does not take it back.
func TestEndlessBodyChangesNothing(t *testing.T) {
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	cfg := plant(t, "http", address)
	cfg.Timeout = spec.Duration(2 * time.Second)
	need.Want(t, nil, "a response of 200 was taken back: %v", sinktest.Send(t, open(t, cfg)))
}

func TestSwitchingProtocolsIsAFailure(t *testing.T) {
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"))
	}))
	if err := sinktest.Send(t, open(t, plant(t, "http", address))); err == nil || dispatcher.IsUnavailable(err) {
		t.Errorf("a response of 101 is neither a delivery nor an outage: %v", err)
	}
}

// A context that ends is different from a timeout of the sink's own.
func TestEndOfTheContextDiffersFromATimeout(t *testing.T) {
	begun := make(chan struct{}, 1)
	address, _ := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	}))
	cfg := plant(t, "http", address)
	for _, test := range []struct {
		name  string
		end   func() (context.Context, context.CancelFunc)
		wraps error
	}{
		{"cancelled", func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) }, context.Canceled},
		{"deadline", func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 100*time.Millisecond)
		}, context.DeadlineExceeded},
	} {
		ctx, cancel := test.end()
		go func() {
			<-begun
			if errors.Is(test.wraps, context.Canceled) {
				cancel()
			}
		}()
		err := sinktest.Verify(t, open(t, cfg).Deliver(ctx, []*dispatcher.Event{sinktest.NewEvent()})[0])
		need.That(t, errors.Is(err, test.wraps) && !dispatcher.IsUnavailable(err), "%s: got %v, want an error that wraps %v", test.name, err, test.wraps)
		cancel()
		if err := sinktest.Verify(t, open(t, cfg).Probe(ctx)); !errors.Is(err, test.wraps) {
			t.Errorf("%s: Probe returned %v, want an error that wraps %v", test.name, err, test.wraps)
		}
	}
	cfg.Timeout = spec.Duration(time.Second)
	if err := sinktest.Send(t, open(t, cfg)); err == nil || errors.Is(err, context.DeadlineExceeded) || dispatcher.IsUnavailable(err) {
		t.Errorf("the sink's own timeout returned %v; want a plain failure", err)
	}
}

// The first KiB of a response that refuses is kept next to the error, and only with captureResponse. No error quotes it.
// CONTRACT: C-41, C-73
func TestCaptureResponseKeepsOneKiB(t *testing.T) {
	response := "payload-4111 is too much " + strings.Repeat("ä", 100_000)
	for _, capture := range []spec.ResponseCapture{spec.CaptureBody, spec.CaptureNone, ""} {
		address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, response)
		}))
		cfg := plant(t, "http", address)
		cfg.CaptureResponse = capture
		s := open(t, cfg)
		err := s.Deliver(t.Context(), []*dispatcher.Event{sinktest.NewEvent()})[0]
		want := ""
		if capture == spec.CaptureBody {
			want = response[:1024]
		}
		got := dispatcher.ResponseOf(err)
		need.That(t, got == want, "captureResponse %q: %d bytes are kept, want %d", capture, len(got), len(want))
		need.Want(t, (dispatcher.Cause{Class: "http", Code: "422"}), "captureResponse %q: the cause is %+v", dispatcher.CauseOf(err), capture)
		_ = sinktest.Verify(t, err)
	}
}

// A real server's limits are a pause where one is used, unless Retry-After says another one.
//
// CONTRACT: C-39
func TestUsedLimitIsAPause(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		header http.Header
		want   time.Duration
	}{
		"used":                   {429, http.Header{"Ratelimit": {`"default";r=0;t=30`}}, 30 * time.Second},
		"of an outage":           {503, http.Header{"Ratelimit": {`"default"; t=7; r=0`}}, 7 * time.Second},
		"not used":               {429, http.Header{"Ratelimit": {`"default";r=10;t=30`}}, 0},
		"the longest of those":   {429, http.Header{"Ratelimit": {`"a";r=0;t=5, "b";r=3;t=60`, `"c";r=0;t=9`}}, 9 * time.Second},
		"a name like a limit":    {429, http.Header{"Ratelimit": {`"a,b;r=0;t=60";r=1;t=30`}}, 0},
		"without a reset":        {429, http.Header{"Ratelimit": {`"default";r=0`}}, 0},
		"more than an hour":      {429, http.Header{"Ratelimit": {`"day";r=0;t=86400`}}, time.Hour},
		"first versions":         {429, http.Header{"Ratelimit-Remaining": {"0"}, "Ratelimit-Reset": {"12"}}, 12 * time.Second},
		"first versions, some":   {429, http.Header{"Ratelimit-Remaining": {"4"}, "Ratelimit-Reset": {"12"}}, 0},
		"Retry-After is first":   {429, http.Header{"Retry-After": {"3"}, "Ratelimit": {`"default";r=0;t=30`}}, 3 * time.Second},
		"an event that is wrong": {422, http.Header{"Ratelimit": {`"default";r=0;t=30`}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				maps.Copy(w.Header(), test.header)
				w.WriteHeader(test.status)
			}))
			need.Want(t, test.want, "the pause is %s, want %s", dispatcher.RetryAfterDelay(sinktest.Send(t, open(t, plant(t, "http", address)))))
		})
	}
}

// CONTRACT: C-32, C-70, C-71, C-73
func TestHTTPSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured, spec.Batch} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				return destination(t, spec.HTTPSink{Access: spec.Access{ContentMode: mode}}, nil)
			})
		})
	}
	t.Run("HTTP2", func(t *testing.T) {
		ca := sinktest.NewAuthority(t, "test")
		cert := ca.Sign(t, "server", sinktest.InAnHour())
		sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
			cfg := spec.HTTPSink{Access: spec.Access{TLS: &spec.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM)}}}
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
	e := sinktest.NewEvent()
	e.EventType = `a "b" 100% é` + "\n"
	for _, test := range []struct {
		mode              spec.ContentMode
		contentType, body string
	}{
		{"", "application/json", string(e.Payload)},
		{spec.Structured, "application/cloudevents+json", `{"specversion":"1.0",`},
		{spec.Batch, "application/cloudevents-batch+json", `[{"specversion":"1.0",`},
	} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = test.mode
		need.OK(t, open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0])
		r, dump := <-requests, <-dumps
		want := map[string]string{
			"Content-Type": test.contentType, "X-Key": sinktest.WrongSecret, "Authorization": "Bearer " + sinktest.PasswordSecret,
		}
		if test.mode == "" {
			// CloudEvents HTTP binding, 3.1.3.2; the line break is not allowed in a String.
			want["Ce-Type"] = "a%20%22b%22%20100%25%20%C3%A9%EF%BF%BD"
		}
		for name, value := range want {
			need.Want(t, value, "mode %s: header %s is %q, want %q", r.Header.Get(name), test.mode, name)
		}
		agent := r.Header.Get("User-Agent")
		need.That(t, agent == "outbox-dispatcher" || strings.HasPrefix(agent, "outbox-dispatcher/"), "the User-Agent is %q", agent)
		need.Want(t, "key="+sinktest.WrongSecret, "the query is %q; it must be that of the configuration", r.URL.RawQuery)
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
				need.Want(t, nil, "%v", sinktest.Send(t, s))
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
	need.That(t, len(connections) == workers, "%d connections for %d workers and %d events", len(connections), workers, workers*rounds)
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// A whole outbox arrives in the order of its keys, though the server cuts all connections half-way and is
// gone for a moment.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Batch} {
		t.Run(string(mode), func(t *testing.T) {
			d := destination(t, spec.HTTPSink{Access: spec.Access{ContentMode: mode}}, nil)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: d.Sink, Events: events, Keys: 1000, Arrived: d.Arrived,
				Halfway: func() { d.Stop(); d.Start() },
			})
		})
	}
}
