package consumer_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A real dispatcher delivers an outbox to a consumer's process that is killed in the middle of handling, eight times, between a
// charge and the commit; a fifth of all requests is sent twice at the same time, and a tenth again at the end. Each
// committed event has one effect and one charge, and a rolled-back one none. OUTBOX_CONSUMER_EVENTS says how many; it
// defaults to 1000.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-001, RULE-010-003, RULE-010-012, RULE-010-020, RULE-010-022
func TestEffectsEqualTheCommittedEvents(t *testing.T) {
	events := 1000
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_CONSUMER_EVENTS")); err == nil {
		events = n
	}
	dsn := pgtest.Migrated(t)
	pool := pgtest.Open(t, dsn)
	pgtest.Exec(pool, "create table effects (tracking_id uuid, consumer text)")
	pgtest.Exec(pool, consumer.SQL(""))
	const insert = `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', 'key-' || n % 100, '{"order": 1}' from generate_series(1, $1::integer) as n`
	tx, err := pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), insert, events/10)
	check(t, err)
	check(t, tx.Rollback(t.Context()))
	pgtest.Exec(pool, insert, events)

	process := &child{t: t, dsn: dsn}
	payments := &provider{every: events / 8, charged: map[string]int{}, kill: process.restart}
	paymentsServer := httptest.NewServer(payments)
	defer paymentsServer.Close()
	process.payments = paymentsServer.URL
	process.start()
	defer process.kill()
	between := &network{to: process.address}
	front := httptest.NewServer(between)
	defer front.Close()

	runDispatcher(t, pool, front.URL, events)
	between.copies.Wait()
	replayed := between.replay(t)

	committed := pgtest.Value[int](pool, "select count(*) from outbox.outbox_events where status = 'delivered'")
	effects := pgtest.Value[int](pool, "select count(*) from effects")
	distinct := pgtest.Value[int](pool, "select count(*) from effects e join outbox.outbox_events o on o.id = e.tracking_id where exists (select from processed_events p where p.tracking_id = o.id)")
	need.That(t, committed == events && effects == events && distinct == events,
		"%d events are delivered, with %d effects, %d of them of committed events; want %d of each", committed, effects, distinct, events)
	calls, keys := 0, make([]string, 0, events)
	for key, n := range payments.charged {
		calls += n
		keys = append(keys, key)
	}
	// In one statement: a hundred thousand would take longer than all else.
	const charged = `select count(*) from (select tracking_id from effects group by tracking_id having count(*) = 1) as e where tracking_id::text = any ($1)`
	pgtest.Want[int](pool, len(keys), "%d of %d charges are of an event with one effect", charged, keys)
	need.Want(t, events, "%d charges for %d events", len(payments.charged))
	t.Logf("%d events: %d requests, %d of them sent twice, %d replayed; %d kills; %d calls for %d charges",
		events, between.requests, between.doubled, replayed, payments.kills, calls, len(payments.charged))
	need.That(t, payments.kills >= 7 && calls > events && between.doubled >= events/5 && replayed >= events/10, "that is less trouble than there was to be")
}

// provider takes charges: one for each Idempotency-Key, however often it is called. Each so many calls it has the
// consumer killed before the response.
type provider struct {
	every int
	kill  func()

	mu           sync.Mutex
	calls, kills int
	charged      map[string]int // calls by key
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.charged[r.Header.Get("Idempotency-Key")]++
	p.calls++
	kill := p.calls%p.every == 0 && p.kills < 8
	if kill {
		p.kills++
	}
	p.mu.Unlock()
	if kill {
		p.kill()
	}
	w.WriteHeader(http.StatusOK)
}

// network is what is between dispatcher and consumer. It sends each fifth request twice at the same time.
type network struct {
	to     func() string
	copies sync.WaitGroup

	mu                sync.Mutex
	requests, doubled int
	seen              []message // each tenth
}

type message struct {
	header http.Header
	body   []byte
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m := message{r.Header.Clone(), body}
	n.mu.Lock()
	n.requests++
	if n.requests%10 == 0 {
		n.seen = append(n.seen, m)
	}
	if n.requests%5 == 0 {
		n.doubled++
		n.copies.Go(func() { _, _, _ = n.send(context.Background(), m) })
	}
	n.mu.Unlock()
	status, after, err := n.send(r.Context(), m)
	if err != nil {
		status = http.StatusBadGateway
	}
	if after != "" {
		w.Header().Set("Retry-After", after)
	}
	w.WriteHeader(status)
}

func (n *network) send(ctx context.Context, m message) (status int, retryAfter string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.to(), bytes.NewReader(m.body))
	if err != nil {
		return 0, "", err
	}
	r.Header = m.header
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	return response.StatusCode, response.Header.Get("Retry-After"), response.Body.Close()
}

// replay sends what it has seen again, the last first.
func (n *network) replay(t *testing.T) (done int) {
	for i := len(n.seen) - 1; i >= 0; i-- {
		if status, _, err := n.send(t.Context(), n.seen[i]); err != nil || status != http.StatusNoContent {
			t.Fatalf("got %d, %v for a replay", status, err)
		}
		done++
	}
	return done
}

// runDispatcher delivers until every row is delivered.
func runDispatcher(t *testing.T, pool pgtest.DB, url string, events int) {
	sink, err := httpsink.New(spec.HTTPSink{URL: url}, nil)
	check(t, err)
	defer func() { check(t, sink.Close(context.Background())) }()
	d, err := engine.New(pgstore.New(pool.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()}), sink, dispatcher.Config{
		Topics: []string{"orders"}, MaxAttempts: 1000, Concurrency: 16, Backoff: dispatcher.ExponentialBackoff(50*time.Millisecond, time.Second),
		Logger: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute+time.Duration(events)*20*time.Millisecond)
	var running sync.WaitGroup
	running.Go(func() {
		need.Want(t, nil, "the dispatcher: %v", d.Run(ctx))
	})
	defer running.Wait()
	defer stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for pgtest.Value[int](pool, "select count(*) from (select from outbox.outbox_events where live limit 1) as one") > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Error(fmt.Errorf("not all events were delivered: %+v", d.Snapshot()))
			return
		}
	}
}

// The child is this test's binary again, as a consumer's process. Its arguments are variables.
const childDSN, childPayments = "OUTBOX_TEST_CONSUMER_DSN", "OUTBOX_TEST_CONSUMER_PAYMENTS"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		fmt.Fprintln(os.Stderr, serveChild(dsn, os.Getenv(childPayments)))
		os.Exit(1)
	}
	pgtest.Main(m)
}

// serveChild charges for each event by a call to another service, and then writes its effect. It prints where it listens on
// standard output, and ends when its standard input does.
func serveChild(dsn, payments string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	handler := consumer.New(consumer.Options{ID: "billing", Logger: quiet}).HTTP(pool, func(ctx context.Context, tx pgx.Tx, e *consumer.Event) error {
		charge, err := http.NewRequestWithContext(ctx, http.MethodPost, payments, nil)
		if err != nil {
			return err
		}
		charge.Header.Set("Idempotency-Key", e.IdempotencyKey())
		response, err := http.DefaultClient.Do(charge)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
			return errors.Join(err, errors.New("no charge"))
		}
		_, err = tx.Exec(ctx, "insert into effects values ($1, 'billing')", e.ID)
		return err
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// child is the consumer's process.
type child struct {
	t             *testing.T
	dsn, payments string

	mu      sync.Mutex
	command *exec.Cmd
	stdin   io.Closer
	url     string
}

func (c *child) start() {
	c.command = exec.Command(os.Args[0], "-test.run=^$")
	c.command.Env = append(os.Environ(), childDSN+"="+c.dsn, childPayments+"="+c.payments)
	c.command.Stderr = os.Stderr
	var err error
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		c.t.Errorf("start the consumer: %v", err)
		return
	}
	out, err := c.command.StdoutPipe()
	if err == nil {
		err = c.command.Start()
	}
	if err != nil {
		c.t.Errorf("start the consumer: %v", err)
		return
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.t.Errorf("the consumer did not start: %v", err)
	}
	c.url = "http://" + strings.TrimSpace(line)
}

// kill ends the process as kill -9 does, at once. It returns when it is gone.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	_ = c.command.Wait() // it says "killed"
	_ = c.stdin.Close()
}

// restart kills it in the middle of what it does, and starts it again.
func (c *child) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill()
	c.start()
}

func (c *child) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.url
}
