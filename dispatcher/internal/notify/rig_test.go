package notify_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// secret is in every payload and header of an event.
const secret = "s3cr3t"

// outbox is a migrated database, and an address that gets the notifications.
type outbox struct {
	*testing.T
	*pgxpool.Pool               // of the owner
	login         *pgxpool.Pool // with a dispatcher's rights and no other
	to            *address
}

func newOutbox(t *testing.T) outbox {
	t.Helper()
	o := outbox{T: t, Pool: pgtest.Pool(t, pgtest.Migrated(t)), to: listen(t)}
	o.login = pgtest.Pool(t, pgtest.Login(t, o.Pool, migrations.Dispatcher))
	return o
}

// store is a worker's whose dispatcher has an address, or none.
func (o outbox) store(notify bool) *pgstore.Store {
	return pgstore.New(o.login, pgstore.Options{Namespace: "shop", Notify: notify})
}

// enqueue adds an event with an aggregate.
func (o outbox) enqueue(topic string) (id uuid.UUID) {
	o.Helper()
	return pgtest.Value[uuid.UUID](o, `select id from outbox.enqueue('shop', $1, jsonb_build_object('card', $2::text), p_event_type => 'OrderPlaced',
		p_aggregate_type => 'order', p_aggregate_id => '42', p_tenant_id => '7f3a9c21-0000-4000-8000-00000000000a',
		p_headers => jsonb_build_object('authorization', $2::text))`, topic, secret)
}

// claim claims from a topic, from events that have one attempt.
func (o outbox) claim(s *pgstore.Store, topic string, keys *dispatcher.KeyOrder) dispatcher.Claimed {
	o.Helper()
	claimed, err := s.Claim(o.Context(), dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: time.Minute, MaxAttempts: 1, Keys: keys,
	})
	if err != nil {
		o.Fatal(err)
	}
	return claimed
}

// nack makes an event dead by a refusal.
func (o outbox) nack(s *pgstore.Store, topic string) {
	o.Helper()
	claimed := o.claim(s, topic, nil)
	if len(claimed.Events) != 1 {
		o.Fatalf("claimed %d events of %s, want 1", len(claimed.Events), topic)
	}
	lost, err := s.Nack(o.Context(), []dispatcher.Failure{{
		Lease: claimed.Events[0].Lease(), Error: "the consumer responded 422", Reason: dispatcher.ReasonPermanentFailure,
		Cause: dispatcher.Cause{Class: "http", Code: "422", Place: "/items/*/price"}, Response: "no such item " + secret,
	}})
	if err != nil || len(lost) > 0 {
		o.Fatalf("nack: lost %v, %v", lost, err)
	}
}

// expire makes an event dead by the end of its lease: the next claim finds no attempt left.
func (o outbox) expire(s *pgstore.Store, topic string, keys *dispatcher.KeyOrder) {
	o.Helper()
	o.claim(s, topic, keys)
	pgtest.Exec(o, `update outbox.outbox_events set locked_until = now() - interval '1 second', suspicion = 5, next_attempt_at = now() - interval '1 second' where topic = $1`, topic)
	if claimed := o.claim(o.store(false), topic, keys); len(claimed.Events) > 0 {
		o.Fatalf("claimed %d events of %s again", len(claimed.Events), topic)
	}
}

// notifier sends the notifications of the namespace.
func (o outbox) notifier(change func(*notify.Options)) *notify.Notifier {
	o.Helper()
	n := config.Notify{URL: o.to.URL}
	sink, err := httpsink.New(n.Sink(), nil)
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { _ = sink.Close(context.Background()) })
	opts := notify.Options{Namespace: "shop", Dispatcher: "team/orders", PollEvery: 10 * time.Millisecond}
	if change != nil {
		change(&opts)
	}
	return notify.New(o.login, sink, opts)
}

// run runs a notifier until the test ends, or the returned function is called, which waits for its end.
func (o outbox) run(n *notify.Notifier) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(o.Context()))
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	o.Cleanup(stop)
	return stop
}

// await polls until the condition holds.
func (o outbox) await(what string, condition func() bool) {
	o.Helper()
	pgtest.Eventually(o, what, 3*time.Minute, condition)
}

// notified counts dead letters whose notification was accepted, and waiting those whose was not.
func (o outbox) notified() int {
	o.Helper()
	return pgtest.Value[int](o, `select count(*) from outbox.outbox_dead_letters where notified_at is not null and notify_at is null`)
}

func (o outbox) waiting() int {
	o.Helper()
	return pgtest.Value[int](o, `select count(*) from outbox.outbox_dead_letters where notify_at is not null`)
}

// request is one that the address got.
type request struct {
	id, typ, source, subject, attempt string
	raw                               string // all of its headers, and the body
	notify.Notification
}

// address is a server that gets notifications.
type address struct {
	*httptest.Server
	mu       sync.Mutex
	requests []request
	status   func(*http.Request, request) int // of the response; nil for 204
}

func listen(t *testing.T) *address {
	a := &address{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		raw, _ := json.Marshal(r.Header)
		one := request{
			id: r.Header.Get("Ce-Id"), typ: r.Header.Get("Ce-Type"), source: r.Header.Get("Ce-Source"), subject: r.Header.Get("Ce-Subject"),
			attempt: r.Header.Get("Ce-Attempt"), raw: string(raw) + string(body),
		}
		if err := json.Unmarshal(body, &one.Notification); err != nil || r.Method != http.MethodPost {
			t.Errorf("%s with the body %q: %v", r.Method, body, err)
		}
		a.mu.Lock()
		a.requests = append(a.requests, one)
		respond := a.status
		a.mu.Unlock()
		status := http.StatusNoContent
		if respond != nil {
			status = respond(r, one)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(a.Close)
	return a
}

// respond sets the status of responses from now on.
func (a *address) respond(status func(*http.Request, request) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

func (a *address) all() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]request{}, a.requests...)
}
