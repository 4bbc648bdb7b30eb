package engine_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// cluster is an outbox on a primary with a standby. The rig's pool is a dispatcher's, and names both.
type cluster struct {
	rig
	primary, standby *postgres.Server
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	t.Parallel()
	primary := pgtest.Server(t)
	migrate(t, primary.DSN("postgres"))
	standby := pgtest.Standby(t, primary)
	return cluster{rig{t, dispatcherPool(t, hosts(primary, standby))}, primary, standby}
}

// hosts is a connection string that names servers.
func hosts(servers ...*postgres.Server) string {
	u, err := url.Parse(servers[0].DSN("postgres"))
	if err != nil {
		panic(err)
	}
	var all []string
	for _, s := range servers {
		all = append(all, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
	}
	u.Host = strings.Join(all, ",")
	u.RawQuery += "&connect_timeout=1"
	return u.String()
}

// dispatcherPool connects as a dispatcher does.
func dispatcherPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := database.Pool(t.Context(), spec.Database{DSN: dsn}, "orders")
	need.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// replicated waits until the standby has all that the primary has written.
func (c cluster) replicated() {
	c.Helper()
	to, from := pgtest.Pool(c.T, c.standby.DSN("postgres")), pgtest.Pool(c.T, c.primary.DSN("postgres"))
	pgtest.Exec(rig{c.T, from}, `checkpoint`) // flushes what commits did not wait for
	end := pgtest.Value[string](rig{c.T, from}, `select pg_current_wal_flush_lsn()::text`)
	c.eventually("the standby has it all", func() bool {
		return pgtest.Value[bool](rig{c.T, to}, `select coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false)`, end)
	})
}

// awaitUnreachable waits until the engine says that it has no database, with words in the message.
func (r rig) awaitUnreachable(d *running, words ...string) {
	r.Helper()
	var message string
	r.eventually("the engine says "+strings.Join(words, ", "), func() bool {
		s := d.Snapshot().Source
		if s.OK || s.Err == nil {
			return false
		}
		_, message = database.Classify(s.Err)
		for _, word := range words {
			if !strings.Contains(message, word) {
				return false
			}
		}
		return true
	})
	r.Log(message)
}

// gate is a sink that stops after some events until it is opened.
type gate struct {
	*book
	reached, open chan struct{}
}

func newGate(after int) gate {
	g := gate{&book{}, make(chan struct{}, 1), make(chan struct{})}
	g.respond = func(ctx context.Context, _ *dispatcher.Event) error {
		if n, _ := g.delivered(); n >= after {
			select {
			case g.reached <- struct{}{}:
			default:
			}
			select {
			case <-g.open:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	return g
}

// The primary ends, the engine says what is missing, the standby is promoted, and the engine continues there: no event is
// lost. A standby that was behind has never heard of the claims and the acks, and those events are delivered again.
func TestFailoverLosesNoEvent(t *testing.T) {
	t.Parallel()
	const events = 300
	const sessions = `select count(*) from pg_stat_activity where application_name = 'outbox-dispatcher/orders'`
	for name, test := range map[string]struct {
		lags, once bool // the standby is behind; it has it all
		lease      time.Duration
		ends       func(cluster)
		says       []string
		after      func(cluster)
	}{
		"it crashes": {lags: true, lease: 2 * time.Second, says: []string{"PRIMARY: connection refused", "STANDBY: this server only reads", "promote one"}, ends: func(c cluster) {
			c.eventually("some of it is written", func() bool { return c.delivered() > 0 })
			c.primary.Kill()
		}},
		"it freezes: it sends nothing and breaks no connection": {lease: 3 * time.Second, ends: func(c cluster) {
			if runtime.GOOS != "linux" {
				c.Skip("only Linux lists the children of a process")
			}
			c.replicated()
			need.OK(c, c.primary.Freeze())
			c.Cleanup(c.primary.Thaw)
		}},
		"it is made read-only, and keeps its connections": {once: true, says: []string{"PRIMARY, ", "this server only reads", "if none does, promote one"}, ends: func(c cluster) {
			admin := rig{c.T, pgtest.Pool(c.T, c.primary.DSN("postgres"))}
			pgtest.Exec(admin, `alter system set default_transaction_read_only = on`)
			pgtest.Exec(admin, `select pg_reload_conf()`)
		}, after: func(c cluster) {
			admin := rig{c.T, pgtest.Pool(c.T, c.primary.DSN("postgres"))}
			c.eventually("the connections to the old primary are closed", func() bool { return pgtest.Value[int](admin, sessions) == 0 })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.enqueue("orders", events)
			if test.lags {
				c.replicated()
				c.cutStream()
			}
			sink := newGate(events / 3)
			d := c.start(c.store(), sink, dispatcher.Config{Lease: test.lease, BatchSize: 20, Concurrency: 4})
			receive(t, "a third is delivered", sink.reached)
			test.ends(c)
			close(sink.open)
			ports := strings.NewReplacer("PRIMARY", strconv.Itoa(c.primary.Port), "STANDBY", strconv.Itoa(c.standby.Port))
			c.awaitUnreachable(d, strings.Split(ports.Replace(strings.Join(test.says, "|")), "|")...)
			if test.once {
				c.replicated()
			}
			need.OK(t, c.standby.Promote(t.Context()))
			c.eventually("every row is delivered", func() bool { return c.delivered() == events })
			c.eventually("the engine notices that there is a database", func() bool { return d.Snapshot().Source.OK })
			n, times := sink.delivered()
			need.That(t, n == events && (!test.once || times == events) && (!test.lags || times != events), "%d of %d events were confirmed, %d times", n, events, times)
			if test.after != nil {
				test.after(c)
			}
		})
	}
}

// cutStream makes the standby stay as it is.
func (c cluster) cutStream() {
	c.Helper()
	standby := rig{c.T, pgtest.Pool(c.T, c.standby.DSN("postgres"))}
	pgtest.Exec(standby, `alter system set primary_conninfo = ''`)
	pgtest.Exec(standby, `select pg_reload_conf()`)
	c.eventually("the stream ends", func() bool {
		return pgtest.Value[int](standby, `select count(*) from pg_stat_wal_receiver`) == 0
	})
}

// A dispatcher that is given a standby alone says so, and begins once that is promoted.
func TestStandbyAloneIsWaitedFor(t *testing.T) {
	c := newCluster(t)
	c.enqueue("orders", 10)
	c.replicated()
	c.Pool = dispatcherPool(t, hosts(c.standby))
	d := c.start(c.store(), &book{}, dispatcher.Config{})
	c.awaitUnreachable(d, "this server only reads; connect to the primary: name it, or all servers with commas")
	need.OK(t, c.standby.Promote(t.Context()))
	c.eventually("every row is delivered", func() bool { return c.delivered() == 10 })
}

// sites is a sink whose topics each have a destination of their own. A probe is of the destination as a whole.
type sites struct {
	*book
	mu         sync.Mutex
	down       map[string]error // topics, and what their deliveries fail with
	probeFails atomic.Bool      // the probe fails
	probes     atomic.Int64
}

func newSites(down map[string]error) *sites {
	s := &sites{book: &book{}, down: down}
	s.respond = func(_ context.Context, e *dispatcher.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.down[e.Topic]
	}
	return s
}

func (s *sites) set(topic string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[topic] = err
}

func (s *sites) Probe(context.Context) error {
	s.probes.Add(1)
	if s.probeFails.Load() {
		return errUnreachable
	}
	return nil
}

var errUnreachable = dispatcher.Unavailable(fmt.Errorf("connection refused"))

// never is a backoff of rows that are tried again when the test says so.
var never = dispatcher.ExponentialBackoff(time.Hour, time.Hour)

func (r rig) makeDue() {
	r.Helper()
	pgtest.Exec(r, "update outbox.outbox_events set next_attempt_at = now() where status = 'pending' and next_attempt_at > now()")
}

// One of three topics is unreachable the whole time. The others deliver everything; the paused one spends no
// attempt while it is unreachable, and few while it refuses. It recovers by itself.
//
// CONTRACT: C-32
func TestOutageOfOneTopicPausesItAlone(t *testing.T) {
	const events = 500
	for name, test := range map[string]struct {
		err    error
		state  dispatcher.BreakerState
		spent  func(held time.Duration) (attempts int)
		remark string
	}{
		"unreachable": {errUnreachable, dispatcher.BreakerUnreachable, func(time.Duration) int { return 0 }, "its destination cannot be reached"},
		"refusing":    {errRefused, dispatcher.BreakerRefusing, refusals, "its destination refused one event after the other"},
	} {
		t.Run(name, func(t *testing.T) {
			r, log := newRig(t), &logBook{}
			sink := newSites(map[string]error{"b": test.err})
			d := r.start(r.store(), sink, dispatcher.Config{BatchSize: 50, Concurrency: 4, MaxAttempts: 1000, Backoff: never, Logger: log.logger()})
			for range 5 { // wave after wave: the others must not only be drained once
				for _, topic := range []string{"a", "b", "c"} {
					r.enqueue(topic, events/5)
				}
				due := r.count("topic in ('a', 'c')")
				r.eventually("the other topics are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == due })
			}
			r.eventually("the topic is paused", func() bool { return len(d.Snapshot().PausedTopics) == 1 })
			s := d.Snapshot()
			h := s.PausedTopics[0]
			need.That(t, h.Topic == "b" && h.Breaker == test.state && h.Err != nil && !h.Since.IsZero(), "held is %+v", h)
			need.That(t, s.Breaker == dispatcher.BreakerClosed && s.Sink.OK, "the snapshot says of the destination as a whole %s, %+v", s.Breaker, s.Sink)
			r.eventually("what is not being tried waits", func() bool { return r.count("status = 'processing'") == 0 })
			spent := r.count("topic = 'b' and status = 'pending' and attempts > 0") // without a half-open probe under way
			most := test.spent(time.Since(s.PausedTopics[0].Since))
			need.That(t, spent <= most, "%d events spent attempts on the outage, want at most %d", spent, most)
			n := sink.probes.Load()
			need.That(t, n <= 1+int64(len(log.lines("its destination cannot be reached"))), "the destination was probed %d times, while other topics were delivered", n)
			sink.set("b", nil)
			r.eventually("the topic recovers", func() bool {
				r.makeDue() // again: a half-open probe may have failed just now
				return r.count("status = 'delivered'") == 3*events
			})
			if s := d.Snapshot(); len(s.PausedTopics) != 0 {
				t.Errorf("still held: %+v", s.PausedTopics)
			}
			for _, remark := range []string{test.remark, "the topic is resumed"} {
				lines := log.lines(remark)
				need.That(t, len(lines) == 1 && strings.Contains(lines[0], `"topic":"b"`), "the log says %q %d times, want once, of topic b: %v", remark, len(lines), lines)
			}
		})
	}
}

// refusals is how many attempts a topic may spend that is held for so long, and refuses with four
// deliveries at once: the run, what was on its way or begun until the queue was given back, and half-open probes of
// growing size after at least half a second, a second and so on.
func refusals(held time.Duration) (attempts int) {
	attempts = 30 + 4 + 50
	for at, wait, rows := time.Duration(0), 500*time.Millisecond, 5; at+wait <= held; rows *= 2 {
		attempts += rows
		at += wait
		wait = min(2*wait, 7500*time.Millisecond)
	}
	return attempts
}
