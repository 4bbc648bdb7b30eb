package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// However an event became dead, two processes send one notification: which event, why and what to do, and nothing of
// its content. CONTRACT: C-43, C-73
// REQUIREMENT: STORAGE-43
func TestEachDeadLetterIsNotifiedOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s := o.store(true)
	dead := map[string]uuid.UUID{}
	for _, topic := range []string{"nack", "claim", "claim-keyed", "dead-before"} {
		dead[topic] = o.enqueue(topic)
	}
	o.nack(s, "nack")
	for topic, keys := range map[string]*dispatcher.KeyOrder{"claim": nil, "claim-keyed": {PerKey: 3}} {
		o.claim(s, topic, keys)
		pgtest.Exec(o, `update outbox.outbox_events set locked_until = now() - interval '1 second', suspicion = 5, next_attempt_at = now() - interval '1 second' where topic = $1`, topic)
		if claimed := o.claim(s, topic, keys); len(claimed.Dead) != 1 {
			t.Fatalf("%s: %d became dead by the claim, want 1", topic, len(claimed.Dead))
		}
	}
	o.nack(o.store(false), "dead-before") // by a dispatcher without an address
	if n := o.waiting(); n != 3 {
		t.Fatalf("%d dead letters are marked, want 3", n)
	}
	one, other := o.notifier(nil), o.notifier(nil)
	stopOne, stopOther := o.run(one), o.run(other)
	o.await("three notifications are accepted", func() bool { return o.notified() == 3 })
	stopOne()
	stopOther()
	if sent := one.Counts().Sent + other.Counts().Sent; sent != 3 || len(o.to.all()) != 3 {
		t.Errorf("%d counted, and %d requests, want 3", sent, len(o.to.all()))
	}
	for _, m := range o.to.all() {
		need.That(t, m.typ == notify.EventType && m.source == "/outbox/shop/"+m.Topic && m.subject == "42" && m.attempt == "1",
			"%s: type %q, source %q, subject %q, attempt %q", m.Topic, m.typ, m.source, m.subject, m.attempt)
		need.That(t, !strings.Contains(m.raw, secret), "%s: it has content of the event: %s", m.Topic, m.raw)
		if m.Event != dead[m.Topic].String() || m.Dispatcher != "team/orders" || m.Namespace != "shop" || m.Type != "OrderPlaced" || m.AggregateType != "order" ||
			m.AggregateID != "42" || !strings.HasPrefix(m.Tenant, "7f3a9c21-") || m.Attempts != 1 || m.DeadAt.IsZero() || m.Advice == "" ||
			m.ID != pgtest.Value[int64](o, `select id from outbox.outbox_dead_letters where event_id = $1`, m.Event) ||
			m.Group != pgtest.Value[string](o, `select fingerprint from outbox.outbox_dead_letters where event_id = $1`, m.Event) {
			t.Errorf("%s: the notification is %+v", m.Topic, m.Notification)
		}
		reason, cause := dispatcher.ReasonProcessingTimeout, dispatcher.Cause{Class: dispatcher.ClassLease}
		if m.Topic == "nack" {
			reason, cause = dispatcher.ReasonPermanentFailure, dispatcher.Cause{Class: "http", Code: "422", Place: "/items/*/price"}
		}
		need.That(t, m.Reason == reason && m.Cause == cause && (m.Error == "the consumer responded 422") == (m.Topic == "nack"),
			"%s: dead of %s, %+v, %q", m.Topic, m.Reason, m.Cause, m.Error)
	}
}

// Only dead letters of the namespace and the topics are notified.
func TestOnlyItsTopicsAreNotified(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for _, topic := range []string{"orders", "bills"} {
		o.enqueue(topic)
		o.nack(o.store(true), topic)
	}
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at) values (gen_random_uuid(), 'bank', 'orders', 'poison_message', 1, now())`)
	n := o.notifier(func(opts *notify.Options) { opts.Topics = []string{"orders"} })
	if w, err := n.Waiting(t.Context()); err != nil || w.DeadLetters != 1 || w.Oldest == nil || w.Seconds < 0 {
		t.Errorf("waiting is %+v, %v, want 1", w, err)
	}
	stop := o.run(n)
	o.await("one notification is accepted", func() bool { return o.notified() == 1 })
	stop()
	all := o.to.all()
	need.That(t, len(all) == 1 && all[0].Topic == "orders", "the requests are %+v, want one of orders", all)
	if w, err := n.Waiting(t.Context()); err != nil || w != (notify.Waiting{}) {
		t.Errorf("waiting is %+v, %v, want none", w, err)
	}
}

// A dispatcher without an address marks no dead letter, so it is never notified. CONTRACT: C-43
func TestStoreWithoutNotifyMarksNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("nack")
	o.nack(o.store(false), "nack")
	o.enqueue("claim")
	o.expire(o.store(false), "claim", nil)
	o.enqueue("keyed")
	o.expire(o.store(false), "keyed", &dispatcher.KeyOrder{PerKey: 1})
	pgtest.Want(o, 3, "%d dead letters without a mark, want 3", `select count(*) from outbox.outbox_dead_letters where num_nonnulls(notify_at, notify_attempts, notified_at) = 0`)
	// The setting ends with its transaction, and does not stay in the session.
	config := o.login.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	need.OK(t, err)
	defer pool.Close()
	one := o
	one.login = pool
	one.enqueue("marked")
	one.nack(one.store(true), "marked")
	one.enqueue("after")
	one.nack(one.store(false), "after")
	pgtest.Want(o, "marked", "marked are %q", `select string_agg(topic, ' ') from outbox.outbox_dead_letters where notify_at is not null`)
}

// An address that responds 503 gets the same notifications later, with the same ids, and few requests in between.
// CONTRACT: C-43
func TestNotificationsAreSentWhenTheAddressRecovers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, now() from generate_series(1, 150)`)
	o.to.respond(func(*http.Request, request) int { return http.StatusServiceUnavailable })
	n := o.notifier(nil)
	o.run(n)
	o.await("a second look failed", func() bool { return n.Counts().Failed > 8 })
	if !strings.Contains(n.Problem(), "responded 503") {
		t.Errorf("the problem is %q", n.Problem())
	}
	need.Want(t, 0, "%d notifications are accepted, want none", o.notified())
	first := o.to.all()
	o.to.respond(nil)
	o.await("all notifications are accepted", func() bool {
		pgtest.Exec(o, `update outbox.outbox_dead_letters set notify_at = now() where notify_at > now() + interval '10 seconds' and notify_at < now() + interval '90 seconds'`)
		return o.notified() == 150
	})
	o.await("the problem is over", func() bool { return n.Problem() == "" }) // the problem ends after the dead letters are written
	if n.Counts().Sent != 150 {
		t.Errorf("counted %+v", n.Counts())
	}
	ids, attempts := map[int64]string{}, map[string]int{}
	for _, m := range o.to.all() {
		id := ids[m.ID]
		need.That(t, id == "" || id == m.id, "dead letter %d has the ids %s and %s", m.ID, id, m.id)
		ids[m.ID] = m.id
		attempts[m.id]++
		need.That(t, m.attempt == fmt.Sprint(attempts[m.id]), "attempt %s of %s came as number %d", m.attempt, m.id, attempts[m.id])
	}
	if len(ids) != 150 || len(attempts) != 150 || attempts[first[0].id] != 2 {
		t.Errorf("%d dead letters have %d ids, and the first one %d attempts; want 150, 150 and 2", len(ids), len(attempts), attempts[first[0].id])
	}
}

// A notification that the address refuses does not delay the others, and waits longer than they take.
func TestRefusedNotificationDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at, dead_at)
		select gen_random_uuid(), 'shop', case n when 1 then 'refused' else 'orders' end, 'poison_message', 1, now() - make_interval(secs => n), now() - interval '1 hour' from generate_series(1, 20) as n`)
	o.to.respond(func(_ *http.Request, m request) int {
		if m.Topic == "refused" {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	n := o.notifier(nil)
	o.run(n)
	o.await("the others are accepted", func() bool { return o.notified() == 19 })
	o.await("the refusal is written", func() bool {
		return n.Counts().Failed == 1 && pgtest.Value[bool](o, `select bool_and(notify_at is null or topic = 'refused') from outbox.outbox_dead_letters`)
	})
	wait := pgtest.Value[float64](o, `select extract(epoch from notify_at - now()) from outbox.outbox_dead_letters where topic = 'refused'`)
	need.That(t, wait >= 60 && wait <= 300, "it waits %.0f s, want 300", wait)
}

// An event that is dead again after a replay has another notification. CONTRACT: C-41
func TestDeadAgainIsAnotherNotification(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	id := o.enqueue("orders")
	o.nack(o.store(true), "orders")
	o.run(o.notifier(nil))
	o.await("the first is accepted", func() bool { return o.notified() == 1 })
	pgtest.Exec(o, `update outbox.outbox_events set status = 'pending', attempts = 0, dead_reason = null, next_attempt_at = now() where id = $1`, id)
	o.nack(o.store(true), "orders")
	o.await("the second is accepted", func() bool { return o.notified() == 2 })
	all := o.to.all()
	need.That(t, len(all) == 2 && all[0].id != all[1].id && all[0].Event == all[1].Event && all[0].ID != all[1].ID, "the requests are %+v", all)
}

// A notification that was not accepted within a day is given up, and counted.
func TestNotificationIsGivenUpAfterADay(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at, notify_attempts, dead_at)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, now(), 7, now() - make_interval(hours => n) from generate_series(23, 25, 2) as n`)
	n := o.notifier(nil)
	o.run(n)
	o.await("one is accepted and one given up", func() bool { return n.Counts() == (notify.Counts{Sent: 1, GivenUp: 1}) && o.waiting() == 0 })
	all := o.to.all()
	need.That(t, len(all) == 1 && all[0].attempt == "8", "the requests are %+v", all)
	pgtest.Want(o, "7 false, 8 true", "the dead letters say %s", `select string_agg(notify_attempts || ' ' || (notified_at is not null), ', ' order by dead_at) from outbox.outbox_dead_letters`)
}

// A stop waits for no response, and a notification without one is due again at once.
func TestStopInterruptsRequests(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("orders")
	o.nack(o.store(true), "orders")
	requested := make(chan struct{}, 1)
	o.to.respond(func(r *http.Request, _ request) int {
		requested <- struct{}{}
		<-r.Context().Done()
		return http.StatusOK
	})
	n := o.notifier(nil)
	stop := o.run(n)
	<-requested
	stop()
	need.That(t, pgtest.Value[bool](o, `select notify_at <= now() and notified_at is null from outbox.outbox_dead_letters`), "it is not due")
	if n.Counts() != (notify.Counts{}) || n.Problem() != "" {
		t.Errorf("a stop counts as %+v, %q", n.Counts(), n.Problem())
	}
}

// Processes share the dead letters, and none takes what another has.
func TestProcessesShareTheDeadLetters(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, now() from generate_series(1, 500)`)
	for range 3 {
		o.run(o.notifier(nil))
	}
	o.await("all notifications are accepted", func() bool { return o.notified() == 500 })
	ids := map[string]bool{}
	for _, m := range o.to.all() {
		ids[m.id] = true
	}
	if len(ids) != 500 || len(o.to.all()) != 500 {
		t.Errorf("%d requests, with %d ids, want 500", len(o.to.all()), len(ids))
	}
}

// A notifier works in every mode of the driver, also in the one for PgBouncer before 1.21.
func TestNotifierWorksInEveryModeOfTheDriver(t *testing.T) {
	t.Parallel()
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		o := newOutbox(t)
		pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at)
				select gen_random_uuid(), 'shop', topic, 'poison_message', 1, now() from unnest('{good,bad}'::text[]) as topic`)
		o.to.respond(func(_ *http.Request, m request) int { return map[string]int{"good": 200, "bad": 500}[m.Topic] })
		o.login = pgtest.Pool(t, mode.In(o.login.Config().ConnString()))
		n := o.notifier(nil)
		stop := o.run(n)
		o.await("one is accepted and one put back", func() bool { return o.notified() == 1 && n.Counts().Failed == 1 })
		stop()
		w, err := n.Waiting(t.Context())
		need.That(t, err == nil && w.DeadLetters == 1, "waiting is %+v, %v", w, err)
	})
}

// Whatever the planner knows of the table, what is due is found by its own index, without a sequential scan or a sort.
func TestStatementsUseIndexes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `alter table outbox.outbox_dead_letters set (autovacuum_enabled = off)`)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, case when n % 2000 = 0 then now() end from generate_series(1, 20000) as n`)
	for _, analyze := range []bool{false, true} {
		if analyze {
			pgtest.Exec(o, `analyze outbox.outbox_dead_letters`)
		}
		for name, want := range map[string]struct{ args, uses string }{
			"take":    {`'shop', '{orders}', 100, '1 minute', '1 day'`, "outbox_dead_letters_notify"},
			"waiting": {`'shop', '{orders}', 10001`, "outbox_dead_letters_notify"},
			"sent":    {`'{1,2}'`, "outbox_dead_letters_pkey"},
			"again":   {`'{1,2}', '{1,1}', '{1s,1s}', '{0,1}'`, "outbox_dead_letters_pkey"},
		} {
			plan := pgtest.GenericPlan(o, notify.Settings, notify.Statements()[name], want.args)
			need.That(t, strings.Contains(plan, want.uses) && !strings.Contains(plan, "Seq Scan on outbox_dead_letters") && !strings.Contains(plan, "Sort"),
				"%s, analyzed %v:\n%s", name, analyze, plan)
		}
	}
}

// An address that refuses everything gets a few requests and no more, until the next look. CONTRACT: C-43
func TestRefusingAddressGetsFewRequests(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, now() from generate_series(1, 100)`)
	o.to.respond(func(*http.Request, request) int { return http.StatusServiceUnavailable })
	n := o.notifier(func(opts *notify.Options) { opts.PollEvery = time.Hour })
	o.run(n)
	o.await("the first look is over", func() bool { return n.Problem() != "" })
	got := len(o.to.all())
	need.That(t, got != 0 && got <= 16, "a refusing address got %d requests of 100, want 16 at most", got)
	begun := pgtest.Value[int](o, `select count(*) from outbox.outbox_dead_letters where notify_attempts > 0`)
	need.That(t, begun <= 16, "%d attempts are counted", begun)
}

// What an older attempt puts back is not what another process has taken or sent since.
func TestOlderAttemptPutsNothingBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	id := pgtest.Value[int64](o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, notify_at, notify_attempts)
		values (gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, now() + interval '2 minutes', 2) returning id`)
	back := func(attempts int32) string {
		t.Helper()
		_, err := o.login.Exec(t.Context(), notify.Statements()["again"], []int64{id}, []int32{attempts}, []time.Duration{time.Hour}, []int32{1})
		need.OK(t, err)
		return pgtest.Value[string](o, `select concat_ws(' ', notify_at > now() + interval '10 minutes', notify_attempts) from outbox.outbox_dead_letters`)
	}
	need.Want(t, "f 2", "an older attempt puts back what another has taken: %s", back(1))
	need.Want(t, "t 1", "the newest attempt puts nothing back: %s", back(2))
	pgtest.Exec(o, `update outbox.outbox_dead_letters set notify_at = null, notified_at = now()`)
	back(1)
	need.Want(t, 0, "one that was sent is to be sent again", o.waiting())
}

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
	need.OK(o, err)
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
	n := spec.Notify{URL: o.to.URL}
	sink, err := httpsink.New(n.Sink(), nil)
	need.OK(o, err)
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
	pgtest.Eventually(o, what, condition)
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
		err := json.Unmarshal(body, &one.Notification)
		need.That(t, err == nil && r.Method == http.MethodPost, "%s with the body %q: %v", r.Method, body, err)
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
