package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/servers/pgbouncer"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/promtool"
)

//go:embed audit.sql
var auditSQL string

// world is everything that runs: a PostgreSQL, a consumer, producers and dispatchers.
type world struct {
	options
	dir string
	out io.Writer

	began    time.Time
	server   *postgres.Server
	port     int    // the server's, also after a failover
	skew     string // the file with what the server's clock is ahead; empty when it cannot be changed
	shop     *scenario.Shop
	bouncer  *pgbouncer.Bouncer // nil when this machine can have none
	admin    *pgxpool.Pool
	hand     *shop    // inserts rows that no producer makes, past enqueue
	routes   []string // Secrets with ways to the database, for dispatchers in turn
	address  string   // the consumer's
	consumer *process
	slots    []*slot
	writers  []*process
	// prometheus scrapes the dispatchers, with -alerts. nil without it.
	prometheus *promtool.Server

	database, destination sync.Mutex // one fault at a time
	// control is held by faults that a row in the database begins and ends, and by a failover, which forgets rows.
	control sync.RWMutex

	mu      sync.Mutex
	faults  []injected
	wrong   []string // what no ledger sees: a dispatcher that ended, a stop that failed
	started int
}

// newWorld starts everything but the producers. The caller ends it, also after an error.
func newWorld(ctx context.Context, o options, dir string, out io.Writer) (*world, error) {
	w := &world{options: o, dir: dir, out: out, began: time.Now()}
	if o.copies > 0 { // else who delivers the slow topics?
		w.kinds = slices.DeleteFunc(slices.Clone(o.kinds), func(k kind) bool { return k == slow })
	}
	if o.alerts {
		var err error
		of := filepath.Join(dir, "prometheus")
		if err = os.Mkdir(of, 0o755); err == nil {
			w.prometheus, err = promtool.Start(ctx, of, ".", 0)
		}
		if err != nil {
			return w, err
		}
	}
	if err := w.openDatabase(ctx, filepath.Join(o.binaries, "dispatcher")); err != nil {
		return w, err
	}
	port, err := daemon.FreePort()
	if err != nil {
		return w, err
	}
	w.address = fmt.Sprintf("127.0.0.1:%d", port)
	if err := w.startConsumer(ctx); err != nil {
		return w, err
	}
	for i := range o.dispatchers + o.copies {
		d, err := w.startDispatcher(ctx, max(0, i+1-o.dispatchers), "dispatcher", "")
		if err != nil {
			return w, err
		}
		w.slots = append(w.slots, &slot{now: d})
	}
	return w, nil
}

// openDatabase makes the shop's database as an owner would, and adds the witness.
func (w *world) openDatabase(ctx context.Context, binary string) (err error) {
	env, err := w.openClock()
	if err != nil {
		return err
	}
	if w.server, err = postgres.Start(ctx, postgres.Options{Env: env}); err != nil {
		return err
	}
	w.port = w.server.Port
	if w.shop, err = scenario.NewShop(ctx, "shop", w.server.DSN); err != nil {
		return err
	}
	if w.admin, err = pgxpool.New(ctx, w.shop.Admin); err != nil {
		return err
	}
	journal, err := appendTo(filepath.Join(w.dir, "hand.transactions"))
	if err != nil {
		return err
	}
	w.hand = &shop{pool: w.admin, journal: journal}
	if err := w.addRoute("direct", w.port); err != nil {
		return err
	}
	owner, mode := login("owner"), "Disabled"
	migration := map[string]any{"policy": "Job", "secretRef": owner["secretRef"]}
	owner["migration"] = migration
	if w.paced {
		migration["tenants"] = "Indexed"
	}
	if w.journal {
		mode = "Enabled"
	}
	owner["journal"] = map[string]any{"mode": mode}
	granted := filepath.Join(w.dir, "login.yaml")
	err = errors.Join(objects.Secret(w.dir, "owner", "dsn", w.shop.DSN(w.shop.Owner, "127.0.0.1", w.port)),
		objects.Write(w.ownerFile(), "chaos", nil, owner), objects.Write(granted, "chaos", nil, login(w.routes[0])),
		objects.Write(w.replayFile(), "chaos", map[string]any{"namespace": scenario.Namespace, "sink": map[string]any{"log": map[string]any{}}}, login("owner")))
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, binary, "migrate", "up", "-f", w.ownerFile(), "--grant-to-login-of", granted).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	if err := w.shop.GrantApp(ctx); err != nil {
		return err
	}
	if _, err := w.admin.Exec(ctx, auditSQL); err != nil {
		return fmt.Errorf("make the audit: %w", err)
	}
	return w.openBouncer(ctx)
}

// openBouncer puts PgBouncer between every second dispatcher and the database.
func (w *world) openBouncer(ctx context.Context) (err error) {
	w.bouncer, err = pgbouncer.Start(ctx, pgbouncer.Options{
		Server: w.server, Users: map[string]string{w.shop.Dispatcher.User: w.shop.Dispatcher.Password},
	})
	if errors.Is(err, pgbouncer.ErrMissing) {
		fmt.Fprintln(w.out, "Without PgBouncer:", err)
		w.kinds = slices.DeleteFunc(slices.Clone(w.kinds), func(k kind) bool { return k == bouncer })
		return nil
	}
	if err != nil {
		return err
	}
	return w.addRoute("pgbouncer", w.bouncer.Port)
}

// addRoute is a way to the database for dispatchers.
func (w *world) addRoute(secret string, port int) error {
	w.routes = append(w.routes, secret)
	return objects.Secret(w.dir, secret, "dsn", w.shop.DSN(w.shop.Dispatcher, "127.0.0.1", port))
}

// startConsumer starts one and waits until it responds.
func (w *world) startConsumer(ctx context.Context) (err error) {
	w.consumer, err = w.self("consumer", "-address", w.address, "-journal", w.deliveriesFile(), "-work", w.work.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return scenario.Until(ctx, "the consumer responds", func() (bool, string) {
		err := instruct(ctx, "http://"+w.address, w.usual())
		return err == nil, fmt.Sprint(err)
	})
}

// usual instructs the consumer to refuse some events for good; with -alerts none, since an event that is refused for a minute is late.
func (w *world) usual() string {
	return map[bool]string{false: "repaired=0", true: "repaired=1"}[w.alerts]
}

// startProducer starts a producer that writes its own journal.
func (w *world) startProducer(args ...string) (*process, error) {
	name := w.next("p")
	return w.self("producer", append([]string{"-dsn", w.shop.DSN(w.shop.App, "127.0.0.1", w.port),
		"-journal", filepath.Join(w.dir, name+".transactions")}, args...)...)
}

// self runs this program in another role.
func (w *world) self(role string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(filepath.Join(w.dir, role+".log"), []string{roleVariable + "=" + role}, exe, args...)
}

// close ends every process that still runs.
func (w *world) close() error {
	for _, p := range w.writers {
		p.kill()
	}
	for _, s := range w.slots {
		s.now.end((*process).kill)
	}
	if w.consumer != nil {
		w.consumer.kill()
	}
	if w.admin != nil {
		w.admin.Close()
	}
	if w.prometheus != nil {
		w.prometheus.Stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if w.bouncer != nil {
		errs = append(errs, w.bouncer.Stop(ctx))
	}
	if w.server != nil {
		errs = append(errs, w.server.Stop(ctx))
	}
	return errors.Join(errs...)
}

func (w *world) next(prefix string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started++
	return fmt.Sprintf("%s%d", prefix, w.started)
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// verify compares the journal with the rows, when nothing changes them any more.
func (w *world) verify(ctx context.Context) {
	out, err := exec.CommandContext(ctx, filepath.Join(w.binaries, "dispatcher"), "verify", "-f", w.ownerFile()).CombinedOutput()
	if err != nil {
		w.fail("dispatcher verify: %v: %s", err, out)
		return
	}
	fmt.Fprintf(w.out, "dispatcher verify: %s", out)
}

func (w *world) ownerFile() string { return filepath.Join(w.dir, "owner.yaml") }

// replayFile is the owner's file, with the namespace whose dead events are replayed.
func (w *world) replayFile() string { return filepath.Join(w.dir, "replay.yaml") }

func (w *world) deliveriesFile() string { return filepath.Join(w.dir, "deliveries") }
