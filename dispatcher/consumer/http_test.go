package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func request(e *consumer.Event) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/events", bytes.NewReader(e.Payload))
	r.Header.Set("ce-id", e.ID.String())
	r.Header.Set("ce-fencingtoken", fmt.Sprintf("%019d", e.FencingToken))
	r.Header.Set("ce-type", e.EventType)
	r.Header.Set("Content-Type", "application/json")
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Each failure has the response that the dispatcher understands, and is in the log alone.
//
// CONTRACT: C-32, C-73, C-80
// REQUIREMENT: RULE-010-032
func TestHTTPStatusOfEachFailure(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Empty(t))
	pgtest.Exec(pool, consumer.SQL(""))
	const secret = "s3cret"
	for _, test := range []struct {
		name       string
		effect     func() error
		status     int
		retryAfter string
	}{
		{"handled", func() error { return nil }, 204, ""},
		{"bug", func() error { return errors.New(secret) }, 500, ""},
		{"panic", func() error { panic(secret) }, 500, ""},
		{"refused", func() error { return consumer.Refuse(errors.New(secret)) }, 422, ""},
		{"payload of another shape", func() error { var n int; return newEvent().Decode(&n) }, 422, ""},
		{"later", func() error { return consumer.RetryAfter(1500*time.Millisecond, errors.New(secret)) }, 503, "2"},
		{"deadlock", func() error { return fmt.Errorf("update: %w", &pgconn.PgError{Code: "40P01"}) }, 425, "1"},
		{"serialization", func() error { return &pgconn.PgError{Code: "40001"} }, 425, "1"},
		{"busy", func() error { return consumer.ErrBusy }, 425, "1"},
		{"older token", func() error { return consumer.ErrOlderToken }, 409, ""},
		{"database stops", func() error { return &pgconn.PgError{Code: "57P01"} }, 503, ""},
		{"no connection", func() error { return &pgconn.ConnectError{} }, 503, ""},
		{"time is up", func() error { return context.DeadlineExceeded }, 503, ""},
	} {
		var log bytes.Buffer
		c := consumer.New(consumer.Options{ID: "billing", Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		e := newEvent()
		h := c.HTTP(pool, func(context.Context, pgx.Tx, *consumer.Event) error { return test.effect() })
		w := serve(h, request(e))
		if w.Code != test.status || w.Header().Get("Retry-After") != test.retryAfter || strings.Contains(w.Body.String(), secret) {
			t.Errorf("%s: got %d, Retry-After %q, %s; want %d, %q", test.name, w.Code, w.Header().Get("Retry-After"), w.Body, test.status, test.retryAfter)
		}
		failed := test.status != 204
		if failed != strings.Contains(log.String(), e.ID.String()) || failed != strings.Contains(w.Body.String(), e.ID.String()) {
			t.Errorf("%s: logged %q and responded %q", test.name, &log, w.Body)
		}
		if n := pgtest.Value[int](pool, "select count(*) from processed_events where tracking_id = $1", e.ID); failed == (n == 1) {
			t.Errorf("%s: %d records", test.name, n)
		}
		if !failed {
			if w := serve(h, request(e)); w.Code != 204 {
				t.Errorf("got %d for a duplicate, want 204", w.Code)
			}
		}
	}
}

func TestHTTPRefusesOtherRequests(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Empty(t))
	h := consumer.New(consumer.Options{ID: "billing", MaxBytes: 20, Logger: quiet}).HTTP(pool, func(context.Context, pgx.Tx, *consumer.Event) error {
		t.Error("the effect ran")
		return nil
	})
	large := newEvent()
	large.Payload = bytes.Repeat([]byte("x"), 21)
	for _, test := range []struct {
		r      *http.Request
		status int
	}{
		{httptest.NewRequest(http.MethodGet, "/events", nil), 405},
		{httptest.NewRequest(http.MethodPost, "/events", strings.NewReader("{}")), 400},
		{request(large), 413},
	} {
		if w := serve(h, test.r); w.Code != test.status {
			t.Errorf("got %d, want %d", w.Code, test.status)
		}
	}
}

// Each event of a batch is handled by itself, the response is the gravest, and what was handled is a duplicate next time.
//
// CONTRACT: C-33, C-80
// REQUIREMENT: RULE-010-022
func TestHTTPBatch(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Empty(t))
	pgtest.Exec(pool, consumer.SQL(""))
	failures, calls := map[string]error{}, 0
	h := consumer.New(consumer.Options{ID: "billing", Logger: quiet}).HTTP(pool, func(_ context.Context, _ pgx.Tx, e *consumer.Event) error {
		calls++
		if err := failures[e.ID.String()]; err != nil {
			return err
		}
		if e.EventType == "panics" {
			panic("no")
		}
		return nil
	})
	after := ""
	send := func(events ...*consumer.Event) int {
		parts := make([]string, len(events))
		for i, e := range events {
			parts[i] = fmt.Sprintf(`{"specversion":"1.0","id":"%s","type":"%s","data":{}}`, e.ID, e.EventType)
		}
		r := httptest.NewRequest(http.MethodPost, "/events", strings.NewReader("["+strings.Join(parts, ",")+"]"))
		r.Header.Set("Content-Type", "application/cloudevents-batch+json")
		w := serve(h, r)
		after = w.Header().Get("Retry-After")
		return w.Code
	}
	a, b, c := newEvent(), newEvent(), newEvent()
	failures[a.ID.String()] = errors.New("bug")
	b.EventType = "panics"
	if status := send(a, b, c); status != 500 {
		t.Errorf("got %d", status)
	}
	failures[a.ID.String()] = consumer.Refuse(errors.New("content"))
	if status := send(a, c); status != 422 || calls != 4 {
		t.Errorf("got %d after %d calls, want 422 after 4: the third event was handled before", status, calls)
	}
	delete(failures, a.ID.String())
	b.EventType = "better"
	if status := send(a, b, c); status != 204 || calls != 6 {
		t.Errorf("got %d after %d calls, want 204 after 6", status, calls)
	}
	d, e, f := newEvent(), newEvent(), newEvent()
	for e, seconds := range map[*consumer.Event]time.Duration{d: 5, e: 60, f: 10} {
		failures[e.ID.String()] = consumer.RetryAfter(seconds*time.Second, errors.New("later"))
	}
	if status := send(d, e, f); status != 503 || after != "60" {
		t.Errorf("got %d, Retry-After %q; want 503 and the longest, 60", status, after)
	}
}
