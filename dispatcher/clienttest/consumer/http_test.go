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
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
		need.That(t, failed == strings.Contains(log.String(), e.ID.String()) && failed == strings.Contains(w.Body.String(), e.ID.String()),
			"%s: logged %q and responded %q", test.name, &log, w.Body)
		n := pgtest.Value[int](pool, "select count(*) from processed_events where tracking_id = $1", e.ID)
		need.That(t, failed != (n == 1), "%s: %d records", test.name, n)
		if !failed {
			w := serve(h, request(e))
			need.Want(t, 204, "got %d for a duplicate, want 204", w.Code)
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
		w := serve(h, test.r)
		need.Want(t, test.status, "got %d, want %d", w.Code)
	}
}

// Each event of a batch is handled by itself, the response is the gravest, and what was handled is a duplicate next time.
//
// CONTRACT: C-33, C-80
// REQUIREMENT: RULE-010-022
func TestBatchRespondsWithTheGravestOutcome(t *testing.T) {
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
	need.Want(t, 500, "got %d", send(a, b, c))
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

// Events processed by result, duplicates skipped, latency, and the distribution of retries; of several
// consumers in one process, and 0 from the start.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-041
func TestMetricsCountResultsDuplicatesAndRetries(t *testing.T) {
	each(t, func(t *testing.T, _ pgtest.DB, newSide func(consumer.Options) side) {
		registry := prometheus.NewRegistry()
		metrics := consumer.NewMetrics(registry)
		billing := newSide(consumer.Options{Metrics: metrics, Fence: true})
		newSide(consumer.Options{ID: "mail", Metrics: metrics})
		e := newEvent()
		deliver := func(token int64, attempt int, effect func(execer) error) {
			defer func() { _ = recover() }()
			again := *e
			again.FencingToken, again.Attempt = token, attempt
			_, _ = billing.handle(t.Context(), &again, effect)
		}
		deliver(1, 1, func(execer) error { return errEffect })
		deliver(2, 2, func(execer) error { panic("no") })
		deliver(1, 1, effect(e))  // older: neither processed nor a duplicate
		deliver(4, 20, effect(e)) // 19 retries
		deliver(4, 20, effect(e))
		const want = `
# HELP outbox_consumer_duplicates_skipped_total Deliveries of events that were handled before.
# TYPE outbox_consumer_duplicates_skipped_total counter
outbox_consumer_duplicates_skipped_total{consumer_id="billing"} 1
outbox_consumer_duplicates_skipped_total{consumer_id="mail"} 0
# HELP outbox_consumer_events_processed_total Deliveries that ran their effect or failed, by result: success or failure.
# TYPE outbox_consumer_events_processed_total counter
outbox_consumer_events_processed_total{consumer_id="billing",result="failure"} 2
outbox_consumer_events_processed_total{consumer_id="billing",result="success"} 1
outbox_consumer_events_processed_total{consumer_id="mail",result="failure"} 0
outbox_consumer_events_processed_total{consumer_id="mail",result="success"} 0
# HELP outbox_consumer_retry_count How many deliveries of the event came before this one.
# TYPE outbox_consumer_retry_count histogram
outbox_consumer_retry_count_bucket{consumer_id="billing",le="0"} 2
outbox_consumer_retry_count_bucket{consumer_id="billing",le="1"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="2"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="3"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="5"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="8"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="12"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="19"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="50"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="100"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="+Inf"} 5
outbox_consumer_retry_count_sum{consumer_id="billing"} 39
outbox_consumer_retry_count_count{consumer_id="billing"} 5
`
		check(t, testutil.GatherAndCompare(registry, strings.NewReader(want),
			"outbox_consumer_duplicates_skipped_total", "outbox_consumer_events_processed_total", "outbox_consumer_retry_count"))
		all, err := registry.Gather()
		check(t, err)
		for _, family := range all {
			if family.GetName() == "outbox_consumer_processing_latency_seconds" {
				need.Want(t, 3, "%d latencies of 3 deliveries that were processed", family.GetMetric()[0].GetHistogram().GetSampleCount())
				return
			}
		}
		t.Error("no latency")
	})
}

const day = 24 * time.Hour

// The three scenarios, and a retention of at least the outbox's and of the age of replays.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestPolicyIsChecked(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy consumer.Policy
		want   string // a part of the error, or none
	}{
		{"standard", consumer.Policy{Replay: day}, ""},
		{"standard, too short", consumer.Policy{Retention: 6 * day, Replay: day}, "this kind of data needs 168h"},
		{"financial", consumer.Policy{Retention: 30 * day, Minimum: consumer.Financial, Replay: day}, ""},
		{"financial, too short", consumer.Policy{Retention: 29 * day, Minimum: consumer.Financial, Replay: day}, "needs 720h"},
		{"shorter than the outbox's", consumer.Policy{Retention: 8 * day, Outbox: 9 * day, Replay: day}, "lower retention.delivered"},
		{"as long as the outbox's", consumer.Policy{Retention: 9 * day, Outbox: 9 * day, Replay: day}, ""},
		{"shorter than replays", consumer.Policy{Retention: 8 * day, Replay: 60 * day}, "events may come again for 1440h"},
		{"replays not said", consumer.Policy{Retention: 8 * day}, "set Policy.Replay"},
	} {
		err := test.policy.Check()
		need.That(t, (test.want != "" || err == nil) && (test.want == "" || (errors.Is(err, consumer.ErrInvalid) && strings.Contains(err.Error(), test.want))),
			"%s: %v", test.name, err)
	}
}

// A sweep removes a consumer's own old records, and a refused policy none. It ends while records become due, of which there is
// one more after each transaction here.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestSweepRemovesOnlyTheConsumersOldRecords(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{})
		fill := func(n int, id, age string) {
			pgtest.Exec(pool, "insert into processed_events (tracking_id, consumer_id, processed_at) select gen_random_uuid(), $2, now() - $3::interval from generate_series(1, $1)", n, id, age)
		}
		fill(4100, "billing", "31 days") // more than two transactions take
		fill(3, "billing", "29 days")
		fill(5, "mail", "90 days")
		pgtest.Exec(pool, "insert into event_tokens select gen_random_uuid(), 'billing', 1, now() - interval '31 days'")
		if _, err := c.sweep(consumer.Policy{Retention: 30 * day, Replay: 31 * day}); !errors.Is(err, consumer.ErrInvalid) || !strings.Contains(err.Error(), "consumer billing") {
			t.Errorf("a policy that is too short: %v", err)
		}
		pgtest.Exec(pool, `create sequence sweeps maxvalue 9;
			create function due() returns trigger language plpgsql as $$ begin
				insert into processed_events values (gen_random_uuid(), 'billing', now() - interval '31 days', nextval('sweeps'));
				return null;
			end $$;
			create trigger due after delete on processed_events for each statement execute function due()`)
		removed, err := c.sweep(consumer.Policy{Retention: 30 * day, Minimum: consumer.Financial, Replay: 30 * day})
		check(t, err)
		left := pgtest.Value[int](pool, "select count(*) from processed_events")
		need.That(t, removed == 4102 && left == 9, "%d removed and %d left, want 4102 and 9", removed, left)
		pgtest.Want(pool, 0, "%d old tokens are left", "select count(*) from event_tokens")
	})
}

// Under a legal hold nothing goes until it is released.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestLegalHoldKeepsRecords(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		billing, mail := newSide(consumer.Options{}), newSide(consumer.Options{ID: "mail"})
		sweep := func(c side, want int64) {
			t.Helper()
			pgtest.Exec(pool, "insert into processed_events select gen_random_uuid(), id, now() - interval '90 days' from unnest(array['billing', 'mail']) as id")
			removed, err := c.sweep(consumer.Policy{Replay: day})
			need.That(t, err == nil && removed == want, "%d removed, %v; want %d", removed, err, want)
		}
		check(t, billing.hold("case 12", "audit", false))
		check(t, billing.hold("case 12", "audit of 2026", false))
		check(t, mail.hold("freeze", "incident", true))
		for name, err := range map[string]error{
			"another consumer's": mail.hold("case 12", "mine", false), "one's as everyone's": billing.hold("case 12", "all", true),
		} {
			need.That(t, errors.Is(err, consumer.ErrInvalid), "the name of a hold that is %s: %v", name, err)
		}
		sweep(billing, 0)
		sweep(mail, 0)
		check(t, billing.release("freeze"))
		sweep(billing, 0)
		sweep(mail, 4)
		check(t, billing.release("case 12"))
		sweep(billing, 5)
		for name, err := range map[string]error{
			"released twice": billing.release("case 12"), "a name that was used": billing.hold("case 12", "again", false), "unknown": mail.release("case 13"),
		} {
			need.That(t, errors.Is(err, consumer.ErrInvalid), "%s: %v", name, err)
		}
		pgtest.Want(pool, 2, "%d of 2 holds are kept with what they were", "select count(*) from processed_event_holds where released_at is not null and reason <> 'audit'")
	})
}
