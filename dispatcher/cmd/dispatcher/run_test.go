package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Stop finishes the deliveries in flight, and returns the events that have not begun. CONTRACT: C-30
func TestSIGTERMDrainsDeliveries(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 20)
	arrived, release := make(chan struct{}, 20), make(chan struct{})
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer consumer.Close()
	yaml := dispatching("{http: {url: '" + consumer.URL + "'}}")
	p := start(t, o.file(t, o.dispatcher, yaml+"delivery: {concurrency: 2}\n"))
	<-arrived
	<-arrived
	await(t, "all in flight", func() bool { return p.status(t).InFlight.Rows == 20 })

	stopped := make(chan int)
	go func() { stopped <- p.stop(t) }()
	await(t, "draining, and the rows that wait given back", func() bool {
		return p.status(t).State == "Draining" && o.count(t, "status = 'pending' and attempts = 0 and locked_by is null") == 18
	})
	p.unready(t, "stopping")
	close(release)
	need.Want(t, 0, "exit code %d, want 0", <-stopped)
	need.Want(t, 2, "%d delivered, want the 2 in flight", o.count(t, "status = 'delivered' and attempts = 1"))
	need.Want(t, 0, "%d more deliveries began after SIGTERM", len(arrived))
}

// A worker has a row in outbox_workers until it has stopped.
func TestWorkerHasARowWhileItRuns(t *testing.T) {
	t.Parallel()
	o := installed(t)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")))
	noted := func() (n int) {
		t.Helper()
		check(t, o.admin.QueryRow(t.Context(), "select count(*) from outbox.outbox_workers where worker = $1 and namespace = 'shop' and dispatcher <> ''", p.status(t).Worker).Scan(&n))
		return n
	}
	await(t, "the worker is noted", func() bool { return noted() == 1 })
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
	left := pgtest.Value[int](o.admin, "select count(*) from outbox.outbox_workers")
	need.Want(t, 0, "%d rows are left after the stop", left)
}

// The truth on /readyz and /status while the database comes and goes, in one process.
// CONTRACT: C-96, C-101
// REQUIREMENT: STORAGE-58, STORAGE-65
func TestDatabaseComesAndGoes(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	o := newOutbox(t, srv.DSN("postgres")).migrated(t)
	o.exec(t, "create database spare")
	run(t, `{"namespace": "shop", "topic": "orders", "payload": 1, "delay": "1h"}`, "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	srv.Kill()

	yaml := dispatching("{log: {}}")
	p := start(t, o.file(t, o.dispatcher, yaml))
	p.unready(t, "database: ConnectionFailed: ")
	if s := p.status(t); s.Source.State != status.Unreachable || s.Backlog != nil || !strings.Contains(s.Source.Message, "check that the server runs") {
		t.Errorf("before the database was there: %+v", s)
	}
	check(t, srv.Restart(t.Context()))
	p.ready(t)
	scheduled := func() bool { b := p.status(t).Backlog; return b != nil && b.Scheduled == 1 && len(b.Topics) == 1 }
	await(t, "the backlog is counted", scheduled)

	srv.Kill()
	p.unready(t, "database: ConnectionFailed: ")
	if !scheduled() {
		t.Errorf("the last count was not kept: %+v", p.status(t).Backlog)
	}
	check(t, srv.Restart(t.Context()))
	p.ready(t)
	o.admin.Reset()
	o.exec(t, "update outbox.outbox_events set next_attempt_at = now()")
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 1 })
	var metrics string
	await(t, "the delivery is counted", func() bool { // after the database's response
		_, metrics = p.get(t, "/metrics")
		return strings.Contains(metrics, `outbox_events_delivered_total{dispatcher="orders",outbox_namespace="shop",sink="log",topic="orders"} 1`)
	})
	for _, want := range []string{
		`outbox_source_up{dispatcher="orders",outbox_namespace="shop",sink="log"} 1`, "go_goroutines", "process_start_time_seconds",
	} {
		need.That(t, strings.Contains(metrics, want), "/metrics does not say %s", want)
	}
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
}

// A refused login, a missing schema and a schema of another version are waited for, without an exit
// and without a restart. CONTRACT: C-101
func TestWaitsForLoginAndSchema(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	o.login(t, o.dispatcher, "wrong")
	yaml := dispatching("{log: {}}")
	p := start(t, o.file(t, o.dispatcher, yaml))
	p.unready(t, "database: AuthenticationFailed: ")
	if m := p.status(t).Source.Message; !strings.Contains(m, "password authentication failed") || !strings.Contains(m, "correct the user and the password") {
		t.Errorf("the message %q lacks cause or remedy", m)
	}
	o.login(t, o.dispatcher, secret) // as a rotated Secret does
	p.unready(t, "schema: Missing: ")
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, "")).ok(t)
	p.unready(t, "database: PermissionDenied: ")
	o.migrated(t)
	p.ready(t)

	// The schema is compared twice a minute, and at once when the database has recovered.
	o.exec(t, "alter role "+o.dispatcher+" connection limit 0")
	o.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+o.dispatcher+"'")
	p.unready(t, "database: TooFewConnections: ")
	o.exec(t, "insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (99, '0099_future', 'x', 99)")
	o.exec(t, "alter role "+o.dispatcher+" connection limit -1")
	p.unready(t, "schema: TooNew: ")
	if s := p.status(t).Schema; s.State != "TooNew" || s.Version != 99 || s.Message == "" {
		t.Errorf("the schema is %+v, want TooNew at version 99", s)
	}
	o.enqueue(t, 1)
	run(t, "", "check", "-f", o.file(t, o.dispatcher, yaml)).ended(t, 1, "FAIL schema: TooNew: ")
	o.exec(t, "delete from outbox.outbox_migrations where version = 99")
	// Other migrations of the same number: a pod that carries them does not become ready, so it replaces none.
	o.exec(t, "update outbox.outbox_migrations set checksum = reverse(checksum) where version = 2")
	p.unready(t, "schema: Differs: ")
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, "")).ended(t, 1, "migration 0002_replays differs from", "run that build, or drop the schema")
	o.exec(t, "update outbox.outbox_migrations set checksum = reverse(checksum) where version = 2")
	p.ready(t)
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 1 })
}

// One refused event leaves the process ready. A destination that refuses every event, or is unreachable, makes it
// unready. CONTRACT: C-32, C-101
// REQUIREMENT: STORAGE-58, STORAGE-66
func TestReadyFollowsTheDestination(t *testing.T) {
	t.Parallel()
	o := installed(t)
	codes := make(chan int, 100)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case code := <-codes:
			w.WriteHeader(code)
		default:
		}
	}))
	defer consumer.Close()
	yaml := dispatching("{http: {url: '" + consumer.URL + "'}}")
	p := start(t, o.file(t, o.dispatcher, yaml+"delivery: {backoff: {base: 10ms, max: 10ms}}\n"))
	p.ready(t)

	codes <- http.StatusInternalServerError
	o.enqueue(t, 1)
	for o.count(t, "status = 'delivered'") == 0 {
		if code, body := p.get(t, "/readyz"); code != http.StatusOK {
			t.Fatalf("one failed delivery made it unready: %s", body)
		}
	}
	if e := p.status(t).LastError; e == nil || !strings.Contains(e.Message, "500") {
		t.Errorf("the last error is %+v", e)
	}
	for range 100 {
		codes <- http.StatusInternalServerError
	}
	o.enqueue(t, 30)
	p.unready(t, "sink: Refusing: ")
	for len(codes) > 0 {
		<-codes
	}
	await(t, "everything is delivered", func() bool { return o.count(t, "status = 'delivered'") == 31 })
	p.ready(t)

	consumer.Close()
	o.enqueue(t, 1)
	p.unready(t, "sink: ConnectionFailed: ")
	if s := p.status(t).Sink; s.State != status.Unreachable || !strings.Contains(s.Message, "connection refused") {
		t.Errorf("the sink is %+v, want it unreachable with the cause", s)
	}
}

// Rows are deleted at ack, wake-ups are received, and a transaction that holds vacuum back is shown. CONTRACT: C-60
func TestDeliveredRowsAreDeletedAtAck(t *testing.T) {
	t.Parallel()
	o := installed(t)
	tx, err := o.admin.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), "create table held (n int)")
	check(t, err)
	defer func() { check(t, tx.Rollback(t.Context())) }()
	o.enqueue(t, 3)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")+"delivery: {ordering: Key, onDead: Block, wakeUp: Listen}\nretention: {delivered: 0s}\n"))
	await(t, "wake-ups are received", func() bool { return strings.Contains(p.log.String(), "wake-ups of producers are received") })
	await(t, "the open transaction is shown", func() bool {
		tx := p.status(t).OldestTransaction
		return tx != nil && tx.Kind == status.Session && strings.HasPrefix(tx.Name, "pid ")
	})
	await(t, "the rows are gone", func() bool { return o.count(t, "true") == 0 })
	if _, metrics := p.get(t, "/metrics"); !strings.Contains(metrics, `outbox_oldest_transaction_age_seconds{dispatcher="orders",kind="Session",outbox_namespace="shop",sink="log"} `) {
		t.Error("/metrics does not say how old the transaction is")
	}
}

// Delivered rows are removed after the retention, which status and metrics show: those of an Outbox whatever their namespace, and
// of a dispatcher with a database of its own those of its namespace alone. The worker's row says whether it blocks keys.
// CONTRACT: C-60
func TestRetentionRemovesDeliveredRows(t *testing.T) {
	t.Parallel()
	const order = "delivery: {ordering: Key, onDead: Block}\n"
	for name, test := range map[string]struct {
		own                   bool
		every                 time.Duration
		removed, left, others int64
	}{
		"of an Outbox":         {false, 108 * time.Hour / 24, 7, 3, 0},
		"of the own namespace": {true, 6 * time.Hour, 4, 5, 1}, // after 168h
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := installed(t)
			pgtest.Exec(o.admin, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
				select gen_random_uuid(), case when n = 1 then 'other' else 'shop' end, 'orders', '{}', 'delivered', now() - make_interval(days => n) from generate_series(1, 10) as n`)
			pgtest.Exec(o.admin, `update outbox.outbox_events set updated_at = now() - interval '1 year' where namespace = 'other'`)
			file := o.file(t, o.dispatcher, dispatching("{log: {}}")+order+"retention: {delivered: 108h}\n")
			if test.own {
				check(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: orders}\nspec:\n  namespace: shop\n  database: {secretRef: {name: %s}}\n  sink: {log: {}}\n  %s", secretOf(o.dispatcher), order), 0o600))
			}
			p := start(t, file)
			await(t, "the run is shown", func() bool {
				r := p.status(t).Retention
				return r != nil && r.LastRun != 0 && r.NextRun.Time().Sub(r.LastRun.Time()) == test.every && r.Delivered == test.removed && !r.Running && r.Message == ""
			})
			need.Want(t, test.left, "%d rows are left, want %d", int64(o.count(t, "namespace = 'shop'")))
			need.Want(t, test.others, "%d rows of another namespace are left, want %d", int64(o.count(t, "namespace = 'other'")))
			_, metrics := p.get(t, "/metrics")
			for _, want := range []string{fmt.Sprintf(`outbox_retention_removed_total{dispatcher="orders",kind="delivered",outbox_namespace="shop",sink="log"} %d`, test.removed), `outbox_retention_failed{dispatcher="orders",outbox_namespace="shop",sink="log"} 0`} {
				need.That(t, strings.Contains(metrics, want), "/metrics does not say %s", want)
			}
			await(t, "the worker says that it keeps order, and blocks", func() bool {
				return pgtest.Value[bool](o.admin, `select coalesce(bool_and(ordered and blocks), false) from outbox.outbox_workers`)
			})
		})
	}
}

func TestPausedAndPortInUse(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 3)
	yaml := dispatching("{log: {}}")
	p := start(t, o.file(t, o.dispatcher, yaml+"state: Paused\n"))
	p.ready(t)
	await(t, "the backlog is counted", func() bool { b := p.status(t).Backlog; return b != nil && b.Pending == 3 })
	if s := p.status(t); s.State != "Paused" || s.InFlight.Rows != 0 || o.count(t, "status = 'pending'") != 3 {
		t.Errorf("paused, and yet: %+v", s)
	}
	run(t, "", "run", "-f", o.file(t, o.dispatcher, yaml), "--listen", p.address).ended(t, 1, "--listen: ", "address already in use", "choose a free port")
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
	for line := range strings.Lines(p.log.String()) {
		need.That(t, strings.HasPrefix(line, `{"time":`) && strings.Contains(line, fmt.Sprintf(`"dispatcher":%q`, "orders")), "a log line without its JSON or its dispatcher: %s", line)
	}
}

// A dispatcher with a rate limit delivers nothing while it has no row in outbox_workers, says so, and continues when it has.
//
// CONTRACT: C-36, C-97
func TestARateLimitNeedsTheHeartbeat(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, fmt.Sprintf("revoke insert on outbox.outbox_workers from %s", o.dispatcher))
	o.enqueue(t, 20)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")+"pods: {log: {level: Debug}}\ndelivery: {rateLimit: {events: 1000}}\n"))
	await(t, "the limit is named", func() bool { return p.status(t).LimitedBy == string(dispatcher.LimitedByDatabase) })
	await(t, "the cause is logged", func() bool { return strings.Contains(p.log.String(), "delivers nothing") })
	await(t, "it was tried again", func() bool { return strings.Count(p.log.String(), "was not renewed") >= 3 })
	need.Want(t, 0, "%d events were claimed without a part of the rate", o.count(t, "status <> 'pending'"))
	o.exec(t, fmt.Sprintf("grant insert on outbox.outbox_workers to %s", o.dispatcher))
	await(t, "all are delivered", func() bool { return o.count(t, "status = 'delivered'") == 20 })
	need.Want(t, 1, "it was logged %d times, want once", strings.Count(p.log.String(), "delivers nothing"))
}

// A process keeps the part of the rate that it still uses in its row until its next heartbeat: the response to this one may be lost.
//
// CONTRACT: C-36
func TestAProcessGivesUpItsRateInTwoHeartbeats(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}")+"delivery: {rateLimit: {events: 1000}}\n")
	start(t, file)
	await(t, "the first has all of it", func() bool { return o.text(t, `select max(part)::text from outbox.outbox_workers`) == "1" })
	for _, sql := range []string{
		`create table public.parts (n bigint generated always as identity, part float8)`,
		`create function public.note() returns trigger language plpgsql security definer as $$
			begin insert into public.parts (part) select new.part where old.part > 0 and (select count(*) from outbox.outbox_workers) = 2; return null; end $$`,
		`create trigger note after update on outbox.outbox_workers for each row execute function public.note()`,
	} {
		o.exec(t, sql)
	}
	start(t, file)
	await(t, "the first gives up a half", func() bool { return o.text(t, `select min(part)::text from public.parts`) == "0.5" })
	need.Want(t, "1", "with the first heartbeat that sees the second, the first keeps %s, want 1", o.text(t, `select part::text from public.parts order by n limit 1`))
}

// Two processes share maxConcurrency: when the second comes, the first goes down to its half.
//
// CONTRACT: C-38
func TestTwoProcessesDivideMaxConcurrency(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 20_000)
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(50 * time.Millisecond) }))
	t.Cleanup(sink.Close)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+sink.URL+"'}}")+"delivery: {concurrency: Auto, maxConcurrency: 40}\n")
	first := start(t, file)
	await(t, "the first has more than a half", func() bool { return first.decisions(t, "gain") > 0 })
	start(t, file)
	await(t, "the first has its half", func() bool { return first.decisions(t, "bound") > 0 })
}

// decisions is how often a process changed its concurrency for a reason.
func (p *process) decisions(t testing.TB, reason string) (n int) {
	t.Helper()
	_, text := p.get(t, "/metrics")
	found := regexp.MustCompile(`(?m)^outbox_concurrency_decisions_total\{.*reason="` + reason + `".*\} (\d+)$`).FindStringSubmatch(text)
	if found != nil {
		n, _ = strconv.Atoi(found[1])
	}
	return n
}

// A dispatcher that is killed twenty times while its destination hangs, with two attempts for each event, makes no event
// dead that the destination never had. Then all others are delivered, at their first attempt.
// CONTRACT: C-21, C-22, C-33
func TestKilledDispatcherMakesNothingDeadUnsent(t *testing.T) {
	const events, kills = 300, 20
	var mu sync.Mutex
	sent := map[string]int{}
	arrived := make(chan struct{}, 1000)
	var hangs atomic.Bool
	hangs.Store(true)
	consumer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client is gone
		mu.Lock()
		sent[r.Header.Get("Ce-Id")]++
		mu.Unlock()
		if hangs.Load() {
			arrived <- struct{}{}
			<-r.Context().Done() // the process is killed
		}
	}))
	t.Cleanup(consumer.Close)
	o := installed(t)
	o.enqueue(t, events)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {pollInterval: 100ms, maxAttempts: 2}\n")
	for range kills {
		p := start(t, file)
		<-arrived
		check(t, p.cmd.Process.Kill())
		<-p.done
		await(t, "its session has ended", func() bool {
			return o.text(t, "select count(*)::text from pg_stat_activity where usename = '"+o.dispatcher+"'") == "0"
		})
		for len(arrived) > 0 {
			<-arrived
		}
		o.exec(t, "update outbox.outbox_events set locked_until = now() - interval '1 microsecond' where status = 'processing'") // half a minute later
	}
	hangs.Store(false)
	p := start(t, file)
	await(t, "all are delivered or dead", func() bool { return o.count(t, "live") == 0 })
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
	need.Want(t, 0, "%d events have spent an attempt on a crash", o.count(t, "attempts > 1"))
	dead := strings.Fields(o.text(t, "select string_agg(id::text, ' ') from outbox.outbox_events where status = 'dead'"))
	mu.Lock()
	defer mu.Unlock()
	for _, id := range dead {
		need.That(t, sent[id] != 0, "event %s is dead, and was never sent", id)
	}
	if most := (kills - 2) / 3; len(dead) > most {
		t.Errorf("%d are dead, want at most %d: each was begun alone three times", len(dead), most)
	}
	t.Logf("%d dead; %d events were sent", len(dead), len(sent))
}
