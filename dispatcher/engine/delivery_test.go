package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Two dispatchers share a table, and no event is delivered twice when nothing fails.
//
// CONTRACT: C-20 C-21
// REQUIREMENT: OVERVIEW-7, OVERVIEW-8, STORAGE-31
func TestTwoDispatchersDeliverEachEventOnce(t *testing.T) {
	const events = 5000
	for _, batch := range []int{1, 40} {
		t.Run(fmt.Sprintf("batches of %d", batch), func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", events/2)
			r.enqueue("invoices", events/2)
			sinks := [2]*book{{batch: batch}, {batch: batch}}
			seen := &watcher{}
			for _, sink := range sinks {
				r.start(r.store(), sink, dispatcher.Config{Observer: seen})
			}
			r.eventually("the observer is notified of every row", func() bool {
				seen.mu.Lock()
				defer seen.mu.Unlock()
				return seen.acked == events
			})
			need.Want(t, events, "%d of %d rows are delivered, at the first attempt and without a lease", r.count("status = 'delivered' and attempts = 1 and locked_by is null and locked_until is null"))
			n, times := sinks[0].delivered()
			m, more := sinks[1].delivered()
			if n+m != events || times+more != events {
				t.Errorf("the two delivered %d and %d events, %d times in all; want each of %d once", n, m, times+more, events)
			}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			need.That(t, seen.claimed == events && seen.delivered == events && seen.failed+seen.lost <= 0,
				"the observer was notified of %d claimed, %d delivered, %d failed, %d lost; want %d of the first two", seen.claimed, seen.delivered, seen.failed, seen.lost, events)
			need.That(t, seen.latest > 0 && seen.latest <= waitTimeout, "the longest latency is %v; it is measured from the event's creation", seen.latest)
			need.That(t, seen.waited > 0 && seen.waited <= seen.latest, "the longest wait for a delivery is %v of a latency of %v", seen.waited, seen.latest)
		})
	}
}

// A failing event is tried MaxAttempts times under a rising token, and is then dead with the last
// error. Others are delivered meanwhile.
//
// CONTRACT: C-24 C-26 C-27 C-40 C-41
// REQUIREMENT: OVERVIEW-10, STORAGE-34, cpt-cf-mini-chat-algo-usage-outbox-retry
func TestRetriedEventIsDeadAfterMaxAttempts(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 50)
	bad := pgtest.Value[uuid.UUID](r, `update outbox.outbox_events set event_type = 'Bad'
		where id = (select id from outbox.outbox_events limit 1) returning id`)
	cause := dispatcher.Cause{Class: "http", Code: "500"}
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		if e.EventType == "Bad" {
			return dispatcher.WithCause(cause, dispatcher.WithResponse("out of stock: 4111-1111", errRefused))
		}
		return nil
	}}
	seen, log := &watcher{}, &logBook{}
	r.start(r.store(), sink, dispatcher.Config{MaxAttempts: 4, Observer: seen, Logger: log.logger()})
	r.eventually("one row is dead", func() bool { return r.count("status = 'dead'") == 1 })
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered'") == 49 })
	need.WantAll(t, []int{1, 2, 3, 4}, "the tokens of the attempts are %v, want 1 to 4", sink.begun()[bad])
	need.That(t, r.count(`status = 'dead' and attempts = 4 and dead_reason = 'max_retries_exceeded'
		and last_error = 'the consumer returned 500' and locked_by is null`) == 1, "the dead row does not say attempts 4, max_retries_exceeded and the last error")
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where event_id = $1 and attempts = 4 and class = 'http' and code = '500'
		and jsonb_array_length(failures) = 4 and response = 'out of stock: 4111-1111'`, bad); n != 1 {
		t.Errorf("there are %d dead letters with cause, failures and response, want 1", n)
	}
	r.eventually("the dead event is in the log", func() bool { return len(log.lines("is dead")) == 1 })
	seen.mu.Lock()
	defer seen.mu.Unlock()
	want := dispatcher.DeadEvent{ID: bad, Topic: "orders", Attempts: 4, Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: cause,
		Fingerprint: dispatcher.Fingerprint("orders", dispatcher.ReasonMaxRetriesExceeded, cause)}
	need.That(t, slices.Equal(seen.deadEvents, []dispatcher.DeadEvent{want}) && seen.failed == 4,
		"the observer was notified of %d failures and the deadEvents %v, want 4 and %v", seen.failed, seen.deadEvents, want)
	if lines := log.lines("4111-1111"); len(lines) != 0 {
		t.Errorf("the log has the response of the destination: %v", lines)
	}
	if lines := log.lines("is dead"); len(lines) != 1 || !strings.Contains(lines[0], bad.String()) {
		t.Errorf("the log's lines of the dead event are %v, want one that names %s", lines, bad)
	}
}

// CONTRACT: C-40 C-73
// REQUIREMENT: OVERVIEW-16
func TestPanicIsPoisonAndLogsNoPayload(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 20)
	bad := pgtest.Value[uuid.UUID](r, `update outbox.outbox_events set event_type = 'Bad'
		where id = (select id from outbox.outbox_events limit 1) returning id`)
	log := &logBook{}
	handlers := dispatcher.Handlers{"orders": func(_ context.Context, e *dispatcher.Event) error {
		if e.EventType == "Bad" && e.Attempt == 1 {
			panic(fmt.Sprintf("cannot read %s", e.Payload)) // a careless handler
		}
		if e.EventType == "Bad" {
			_ = e.Payload[len(e.Payload)+e.Attempt]
		}
		return nil
	}}
	d := r.start(r.store(), handlers, dispatcher.Config{MaxAttempts: 2, Logger: log.logger()})
	r.eventually("one row is dead", func() bool { return r.count("status = 'dead'") == 1 })
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered'") == 19 })
	d.stop()
	pgtest.Want(r, "poison_message", "the row is dead for %s, want poison_message", `select dead_reason from outbox.outbox_events where id = $1`, bad)
	lastError := pgtest.Value[string](r, `select last_error from outbox.outbox_events where id = $1`, bad)
	for _, word := range []string{"panic in the sink at delivery_test.go:", "index out of range"} {
		need.That(t, strings.Contains(lastError, word), "last_error is %q; it does not say %q", lastError, word)
	}
	need.That(t, len(log.lines("a value of type string")) != 0, "the log lacks the first panic")
	for _, line := range log.lines("4111-1111") {
		t.Errorf("the log has a payload: %s", line)
	}
	for _, line := range log.lines("") {
		need.That(t, json.Valid([]byte(line)), "the log's line is not JSON: %s", line)
	}
}

// What a failure means is said by wrapping it.
//
// CONTRACT: C-24 C-32 C-40
// REQUIREMENT: OVERVIEW-9, STORAGE-7
func TestOutcomeFollowsTheErrorOfDelivery(t *testing.T) {
	wrong := errors.New("wrong")
	for _, test := range []struct {
		name   string
		result error
		row    string // must be true of the row after one attempt
		want   engine.Outcome
	}{
		{"failure", wrong,
			`status = 'pending' and attempts = 1 and last_error = 'wrong' and locked_by is null
			 and next_attempt_at - updated_at between '30 minutes' and '1 hour'`, engine.Outcome{Failed: 1}},
		{"text that PostgreSQL does not take", errors.New("wrong\x00\xff"),
			`status = 'pending' and attempts = 1 and last_error = 'wrong' || U&'\FFFD'`, engine.Outcome{Failed: 1}},
		{"a short pause", dispatcher.RetryAfter(time.Second, wrong),
			`status = 'pending' and next_attempt_at - updated_at >= '30 minutes'`, engine.Outcome{Failed: 1}},
		{"a long pause", dispatcher.RetryAfter(3*time.Hour, wrong),
			`status = 'pending' and next_attempt_at - updated_at = '3 hours'`, engine.Outcome{Failed: 1}},
		{"permanent", dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, wrong),
			`status = 'dead' and attempts = 1 and dead_reason = 'schema_validation_failed'`, engine.Outcome{Dead: 1}},
		{"permanent for a reason of its own", dispatcher.Permanent("bored", wrong),
			`status = 'dead' and dead_reason = 'permanent_failure' and last_error = 'bored: wrong'`, engine.Outcome{Dead: 1}},
		{"unavailable", fmt.Errorf("dial: %w", dispatcher.Unavailable(wrong)),
			`status = 'pending' and attempts = 0 and last_error is null and next_attempt_at <= now() and locked_by is null`,
			engine.Outcome{Released: 1}},
		{"a kept connection that ended without a response", dispatcher.Unanswered(wrong),
			`status = 'pending' and attempts = 0 and last_error = 'wrong' and next_attempt_at <= now() and locked_by is null`,
			engine.Outcome{Released: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 1)
			sink := &book{respond: func(context.Context, *dispatcher.Event) error { return test.result }}
			cfg := dispatcher.Config{Backoff: dispatcher.ExponentialBackoff(time.Hour, time.Hour)}
			// Nothing was taken: that is an error.
			got, err := r.once(sink, cfg, 1)
			need.That(t, got == test.want && (err != nil) == (got.Released > 0), "RunOnce returned %+v, %v; want %+v", got, err, test.want)
			if r.count(test.row) != 1 {
				t.Errorf("the row is %s; want %s", pgtest.Value[string](r, `select row_to_json(e)::text from outbox.outbox_events e`), test.row)
			}
		})
	}
}

// once makes a dispatcher with a new worker, and calls RunOnce.
func (r rig) once(sink dispatcher.Sink, cfg dispatcher.Config, n int) (engine.Outcome, error) {
	r.Helper()
	return r.onceOn(r.store(), sink, cfg, n)
}

// onceOn is once with a store.
func (r rig) onceOn(store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config, n int) (engine.Outcome, error) {
	r.Helper()
	return r.engine(store, sink, cfg).RunOnce(r.Context(), n)
}

// Each topic's events go to its handler, and to no other.
//
// REQUIREMENT: OVERVIEW-2
func TestEachTopicHasItsHandler(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 3)
	r.enqueue("refunds", 2)
	got := map[string]int{}
	handler := func(name string) func(context.Context, *dispatcher.Event) error {
		return func(_ context.Context, e *dispatcher.Event) error { got[name+" "+e.Topic]++; return nil }
	}
	handlers := dispatcher.Handlers{"orders": handler("ship"), "refunds": handler("repay"), "others": handler("wonder")}
	need.Want(t, nil, "%v", need.Err(r.once(handlers, dispatcher.Config{Concurrency: 1}, 10)))
	want := map[string]int{"ship orders": 3, "repay refunds": 2}
	need.That(t, maps.Equal(got, want), "the handlers had %v, want %v", got, want)
}

// CONTRACT: C-29
// REQUIREMENT: OVERVIEW-13
func TestTopicWithoutHandlerIsRetried(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 1)
	got, err := r.once(dispatcher.Handlers{}, dispatcher.Config{}, 1)
	need.That(t, got.Failed == 1 && err == nil, "RunOnce returned %+v, %v; want one failed delivery", got, err)
	need.That(t, r.count(`status = 'pending' and attempts = 1 and last_error like '%no handler%'`) == 1,
		"the row does not wait for its retry with the error that says what is missing")
	r.start(r.store(), dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }}, dispatcher.Config{})
	r.eventually("a dispatcher with a handler delivers it", func() bool { return r.count("status = 'delivered'") == 1 })
}

// A sink that returns results for more or fewer events than it was given has failed all of them.
func TestSinkWithWrongNumberOfResultsFailsAll(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 3)
	sink := &sinktest.Func{Max: 10, RespondAll: func(context.Context, []*dispatcher.Event) []error { return []error{nil} }}
	got, err := r.once(sink, dispatcher.Config{Backoff: dispatcher.PowerOfTwoBackoff()}, 10)
	need.That(t, got.Failed == 3 && err == nil, "RunOnce returned %+v, %v; want 3 failed deliveries", got, err)
	need.Want(t, 3, "%d of 3 rows say what the sink did", r.count(`last_error like 'the sink returned 1 results for 3 events%'`))
}

// CONTRACT: C-22
// REQUIREMENT: cpt-cf-mini-chat-algo-usage-outbox-claim
func TestSuspectThatWasBegunTooOftenBecomesDead(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 3)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'processing', attempts = 5, suspicion = 5, locked_by = gen_random_uuid(),
		locked_until = now() - interval '1 second'`)
	sink, seen := &book{}, &watcher{}
	got, err := r.once(sink, dispatcher.Config{MaxAttempts: 5, Observer: seen}, 10)
	want := (engine.Outcome{Dead: 3})
	need.That(t, got == want && err == nil, "RunOnce returned %+v, %v; want %+v", got, err, want)
	need.Want(t, 3, "%d of 3 rows are dead for processing_timeout", r.count(`status = 'dead' and dead_reason = 'processing_timeout' and attempts = 5`))
	if len(sink.begun()) != 0 || len(seen.deadEvents) != 3 || seen.deadEvents[0].Reason != dispatcher.ReasonProcessingTimeout {
		t.Errorf("delivered %v, deadEvents %v; want no delivery and 3 deadEvents", sink.begun(), seen.deadEvents)
	}
}

// One event finds its destination unreachable, and the others of its topic are delivered: a partition without a leader. It waits
// longer and longer, spends no attempt, delays no other, and arrives once the destination recovers.
//
// CONTRACT: C-27, C-32
func TestOutageOfOneEventDelaysNoOther(t *testing.T) {
	const waves = 40
	r := newRig(t)
	bad := uuid.New()
	back := make(chan struct{})
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		select {
		case <-back:
			return nil
		default:
		}
		if e.ID == bad {
			return errUnreachable
		}
		return nil
	}}
	d := r.start(r.store(), sink, dispatcher.Config{})
	began := time.Now()
	for n := range waves { // one after the other: each is an occasion to claim the bad one
		if n == 1 {
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload) values ($1, 'shop', 'orders', '{}')`, bad)
		}
		r.enqueue("orders", 10)
		r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*(n+1) })
	}
	pgtest.Exec(r, `update outbox.outbox_events set created_at = now() - interval '1 hour' where id = $1`, bad)
	r.eventually("it waits with its attempt", func() bool {
		return r.count("status = 'pending' and attempts = 0 and next_attempt_at > now() + interval '10 seconds' and last_error <> ''") == 1
	})
	tries := len(sink.begun()[bad])
	most := 60 + waited(began)
	need.That(t, tries <= most, "it was tried %d times, want at most %d", tries, most)
	held := d.Snapshot().PausedTopics
	need.That(t, len(held) == 0, "held: %v", held)
	began = time.Now()
	r.enqueue("orders", 1000)
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*waves+1000 })
	more := len(sink.begun()[bad]) - tries
	need.That(t, more <= 1+waited(began), "while 1000 others were delivered it was tried %d times more", more)
	close(back)
	r.makeDue()
	r.eventually("it arrives with its first attempt", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*waves+1001 })
}

// waited is how often an event may wait for as long as one can that keeps its attempt.
func waited(since time.Time) int { return int(time.Since(since) / (15 * time.Second)) }

const sessionsOfDispatcher = `from pg_stat_activity where application_name = 'outbox-dispatcher/orders'`

// What the database refuses for a while is waited for, and the message says what to do.
// CONTRACT: C-101
func TestDatabaseTroubleIsWaitedForAndNamed(t *testing.T) {
	r, srv := ownServer(t)
	pgtest.Exec(r, `create role modest login password 'test' connection limit 1`)
	for _, sql := range migrations.Grants(pgtest.Schema, "modest", migrations.Dispatcher) {
		pgtest.Exec(r, sql)
	}
	dsn := srv.DSN("postgres")
	locked := func() (end func()) {
		tx, err := r.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `lock table outbox.outbox_events`)
		}
		need.OK(t, err)
		return func() { _ = tx.Rollback(context.Background()) }
	}
	modest := change(dsn, "modest", "test")
	for _, trouble := range []struct {
		name, dsn string
		begin     func() (end func())
		want      string
	}{
		{"statement timeout", dsn + "&statement_timeout=100", locked, "canceling statement due to statement timeout; see what the statement waits for"},
		{"lock timeout", dsn + "&lock_timeout=100", locked, "canceling statement due to lock timeout; let the transaction end that locks the outbox's tables"},
		{"too many connections", modest, func() func() {
			conn, err := pgx.Connect(t.Context(), modest)
			need.OK(t, err)
			return func() { _ = conn.Close(context.Background()) }
		}, `too many connections for role "modest"; raise the login's connection limit to 4`},
		{"no login for a while", modest, func() func() {
			pgtest.Exec(r, `alter role modest nologin`)
			return func() { pgtest.Exec(r, `alter role modest login`) }
		}, `role "modest" is not permitted to log in; correct the user`},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			own := rig{t, dispatcherPool(t, trouble.dsn)}
			before := r.delivered()
			r.enqueue("orders", 10)
			end := trouble.begin()
			d := own.start(own.store(), &book{}, dispatcher.Config{})
			own.awaitUnreachable(d, trouble.want)
			end()
			own.eventually("every row is delivered", func() bool { return r.delivered() == before+10 })
			own.eventually("the engine notices that the database is there", func() bool { return d.Snapshot().Source.OK })
			d.stop()
			own.Close()
			own.eventually("its sessions end", func() bool { return pgtest.Value[int](r, `select count(*) `+sessionsOfDispatcher) == 0 })
		})
	}
}

// change puts another user into a connection string.
func change(dsn, user, password string) string {
	_, rest, _ := strings.Cut(dsn, "@")
	return "postgres://" + user + ":" + password + "@" + rest
}

// A server that shuts down, or starts up, refuses connections with a message of its own.
func TestServerThatShutsDownIsWaitedFor(t *testing.T) {
	r, srv := ownServer(t)
	r.enqueue("orders", 10)
	own := rig{t, dispatcherPool(t, srv.DSN("postgres"))}
	d := own.start(own.store(), &book{}, dispatcher.Config{})
	r.eventually("every row is delivered", func() bool { return r.delivered() == 10 })
	if err := syscall.Kill(r.postmaster(), syscall.SIGTERM); err != nil { // it waits for its sessions to end
		t.Fatal(err)
	}
	r.eventually("the engine's sessions are gone, also one that was just made", func() bool {
		pgtest.Exec(r, `select pg_terminate_backend(pid) `+sessionsOfDispatcher)
		return !d.Snapshot().Source.OK
	})
	own.awaitUnreachable(d, "the database system is shutting down; wait until the server is ready")
	r.Reset()
	need.OK(t, srv.Restart(t.Context()))
	r.eventually("the engine notices that the database is there", func() bool { return d.Snapshot().Source.OK })
	r.enqueue("orders", 10)
	r.eventually("the new rows are delivered", func() bool { return r.delivered() == 20 })
}

// postmaster is the process id of the server.
func (r rig) postmaster() int {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(pgtest.Value[string](r, `show data_directory`), "postmaster.pid"))
	need.OK(r, err)
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	need.OK(r, err)
	return pid
}
