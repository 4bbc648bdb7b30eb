package engine_test

import (
	"context"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
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
	pool, err := database.Pool(t.Context(), config.Database{DSN: dsn}, "orders")
	if err != nil {
		t.Fatal(err)
	}
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

// The primary crashes and its standby is promoted: the engine continues there. The standby was behind, and
// so has never heard of the claims and the acks: those events are delivered again. None is lost.
func TestFailoverLosesNoEvent(t *testing.T) {
	const events = 300
	c := newCluster(t)
	c.enqueue("orders", events)
	c.replicated()
	c.cutStream()
	sink := newGate(events / 3)
	d := c.start(c.store(), sink, dispatcher.Config{Lease: 2 * time.Second, BatchSize: 20, Concurrency: 4})
	receive(t, "a third is delivered", sink.reached)
	c.eventually("some of it is written", func() bool { return c.delivered() > 0 })

	c.primary.Kill()
	close(sink.open)
	c.awaitUnreachable(d, strconv.Itoa(c.primary.Port)+": connection refused", strconv.Itoa(c.standby.Port)+": this server only reads", "promote one")
	if err := c.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.eventually("every row is delivered", func() bool { return c.delivered() == events })
	c.eventually("the engine notices that there is a database", func() bool { return d.Snapshot().Source.OK })
	if n, times := sink.delivered(); n != events || times == events {
		t.Errorf("%d events were delivered %d times, want all %d, and some of them again", n, times, events)
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

// Primary and standby change places, and change back. Nothing is delivered twice.
func TestSwitchoverDeliversNothingTwice(t *testing.T) {
	const events = 300
	c := newCluster(t)
	c.enqueue("orders", events)
	sink := newGate(events / 3)
	log := &logBook{}
	d := c.start(c.store(), sink, dispatcher.Config{BatchSize: 20, Concurrency: 4, Logger: log.logger()})
	receive(t, "a third is delivered", sink.reached)
	c.changePlaces()
	close(sink.open)
	c.eventually("every row is delivered", func() bool { return c.delivered() == events })
	c.changePlaces()
	c.eventually("there is a database", func() bool { return c.Ping(t.Context()) == nil })
	c.enqueue("orders", events)
	c.eventually("the new rows are delivered too", func() bool { return c.delivered() == 2*events })
	if n, times := sink.delivered(); n != 2*events || times != 2*events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, 2*events)
	}
	c.eventually("the engine notices that there is a database", func() bool { return d.Snapshot().Source.OK })
	if down := len(log.lines("the database is unreachable")); down > 4 {
		t.Errorf("the log says %d times that the database is unreachable, want twice", down)
	}
}

// changePlaces makes the standby the primary, and the primary its standby. A primary that shuts down
// waits for a standby that follows it to have everything, and for no other.
func (c *cluster) changePlaces() {
	c.Helper()
	primary := rig{c.T, pgtest.Pool(c.T, c.primary.DSN("postgres"))}
	c.eventually("the standby follows", func() bool {
		return pgtest.Value[bool](primary, `select exists (select from pg_stat_replication where state = 'streaming')`)
	})
	primary.Close()
	err := c.primary.Shutdown(c.Context())
	if err == nil {
		err = c.standby.Promote(c.Context())
	}
	if err == nil {
		err = c.primary.Follow(c.Context(), c.standby)
	}
	if err != nil {
		c.Fatal(err)
	}
	c.primary, c.standby = c.standby, c.primary
}

// A primary that is made read-only keeps its connections. They are dropped, and the engine says what
// is missing until there is a writer.
func TestDemotedPrimaryIsReportedUntilAWriterExists(t *testing.T) {
	const events = 300
	c := newCluster(t)
	c.enqueue("orders", events)
	sink := newGate(events / 3)
	d := c.start(c.store(), sink, dispatcher.Config{BatchSize: 20, Concurrency: 4})
	receive(t, "a third is delivered", sink.reached)
	admin := rig{t, pgtest.Pool(t, c.primary.DSN("postgres"))}
	pgtest.Exec(admin, `alter system set default_transaction_read_only = on`)
	pgtest.Exec(admin, `select pg_reload_conf()`)
	close(sink.open)
	c.awaitUnreachable(d, strconv.Itoa(c.primary.Port)+", ", "this server only reads", "if none does, promote one")
	c.replicated()
	if err := c.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.eventually("every row is delivered", func() bool { return c.delivered() == events })
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, events)
	}
	c.eventually("the connections to the old primary are closed", func() bool {
		return pgtest.Value[int](admin, `select count(*) from pg_stat_activity where application_name = 'outbox-dispatcher/orders'`) == 0
	})
}

// A primary that freezes sends nothing and breaks no connection.
func TestFrozenPrimary(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux lists the children of a process")
	}
	const events = 300
	c := newCluster(t)
	c.enqueue("orders", events)
	sink := newGate(events / 3)
	d := c.start(c.store(), sink, dispatcher.Config{Lease: 3 * time.Second, BatchSize: 20, Concurrency: 4})
	receive(t, "a third is delivered", sink.reached)
	c.replicated()
	if err := c.primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer c.primary.Thaw()
	close(sink.open)
	c.awaitUnreachable(d)
	if err := c.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.eventually("every row is delivered", func() bool { return c.delivered() == events })
	if n, _ := sink.delivered(); n != events {
		t.Errorf("%d of %d events were delivered", n, events)
	}
}

// A dispatcher that is given a standby alone says so, and begins once that is promoted.
func TestStandbyAlone(t *testing.T) {
	c := newCluster(t)
	c.enqueue("orders", 10)
	c.replicated()
	c.Pool = dispatcherPool(t, hosts(c.standby))
	d := c.start(c.store(), &book{}, dispatcher.Config{})
	c.awaitUnreachable(d, "this server only reads; connect to the primary: name it, or all servers with commas")
	if err := c.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.eventually("every row is delivered", func() bool { return c.delivered() == 10 })
}
