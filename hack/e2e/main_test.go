// Package e2e proves the main job on a real cluster: real pods on a real kubelet, a real
// PostgreSQL, a real consumer. It runs when OUTBOX_E2E is 1, as `make test` sets it. LABELS picks a part:
// `make test-e2e LABELS="troubles || counts"`.
package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// cluster is shared by all specs; each container works in a namespace and a database of its own.
var cluster *scenario.Cluster

func TestEndToEnd(t *testing.T) {
	if os.Getenv("OUTBOX_E2E") != "1" {
		t.Skip("these specs need a cluster; `make test-e2e` runs them, or set OUTBOX_E2E=1")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(need.Wait)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	RunSpecs(t, "end to end")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	up, err := scenario.UpCluster(ctx, "../..", "e2e")
	if errors.Is(err, scenario.ErrNoCluster) && !need.CI() {
		Skip("the lines above say why this machine can have no cluster")
	}
	Expect(err).NotTo(HaveOccurred(), "the lines above say what is missing")
	DeferCleanup(func(ctx SpecContext) { Expect(up.Down(ctx)).To(Succeed()) })
	Expect(up.Install(ctx)).To(Succeed(), "install the operator")
	cluster = up
})

// world is what one container of specs has for itself.
type world struct {
	testing.TB
	ctx        context.Context
	server     *postgres.Server
	shop       *scenario.Shop
	consumer   *consumer
	manifests  scenario.Manifests
	dispatcher *scenario.Dispatcher
}

// newWorld starts a PostgreSQL and a consumer, and applies the Secrets. The OutboxDispatcher is the
// spec's to apply. What it starts ends with the spec, or with the container when BeforeAll calls it.
func newWorld(name string) *world {
	t := GinkgoTB()
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	t.Cleanup(cancel)
	w := &world{TB: t, ctx: ctx, consumer: newConsumer(t)}
	var err error
	w.server, err = postgres.Start(ctx, postgres.Options{Listen: []string{"127.0.0.1", cluster.HostListen}})
	w.must(err)
	t.Cleanup(func() {
		stopCtx, cancel := context.WithTimeout(context.Background(), need.Wait)
		defer cancel()
		if err := w.server.Stop(stopCtx); err != nil {
			t.Error(err)
		}
	})
	w.shop, err = scenario.NewShop(ctx, "shop", w.server.DSN)
	w.must(err)
	w.manifests = scenario.Manifests{
		Namespace: "e2e-" + name, Name: "orders", Replicas: 1, SinkURL: w.consumer.url(),
		DispatcherDSN: w.shop.DSN(w.shop.Dispatcher, cluster.HostIP, w.server.Port),
		OwnerDSN:      w.shop.DSN(w.shop.Owner, cluster.HostIP, w.server.Port),
	}
	w.dispatcher = &scenario.Dispatcher{Cluster: cluster, Namespace: w.manifests.Namespace, Name: "orders"}
	w.apply(w.manifests.Secrets())
	t.Cleanup(func() {
		w.explain()
		if _, err := cluster.Run(context.Background(), "delete", "namespace", w.manifests.Namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return w
}

// ready applies the OutboxDispatcher, waits for Ready, and lets the application produce.
func (w *world) ready() {
	w.Helper()
	w.apply(w.manifests.Dispatcher())
	w.must(w.dispatcher.WaitReady(w.ctx, need.Wait))
	w.must(w.shop.GrantApp(w.ctx))
}

func (w *world) apply(manifests string) {
	w.Helper()
	w.must(cluster.Apply(w.ctx, manifests))
}

func (w *world) must(err error) {
	w.Helper()
	need.OK(w, err)
}

// expect waits for a condition and logs it.
func (w *world) expect(kind, status, reason string) scenario.Condition {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, need.Wait)
	defer cancel()
	w.must(w.dispatcher.WaitCondition(ctx, kind, status, reason))
	c, err := w.dispatcher.Condition(w.ctx, kind)
	w.must(err)
	w.Logf("%s=%s %s: %s", kind, c.Status, c.Reason, c.Message)
	return c
}

// exec runs SQL as the superuser.
func (w *world) exec(sql string, args ...any) {
	w.Helper()
	conn, err := pgx.Connect(w.ctx, w.shop.Admin)
	w.must(err)
	defer conn.Close(w.ctx)
	_, err = conn.Exec(w.ctx, sql, args...)
	w.must(err)
}

// number reads one number with SQL as the superuser.
func (w *world) number(sql string) (n int64) {
	w.Helper()
	conn, err := pgx.Connect(w.ctx, w.shop.Admin)
	w.must(err)
	defer conn.Close(w.ctx)
	w.must(conn.QueryRow(w.ctx, sql).Scan(&n))
	return n
}

// drained waits until no event is live.
func (w *world) drained() {
	w.Helper()
	Eventually(func() int64 { return w.number("select count(*) from outbox.outbox_events where live") }).Should(BeZero(), "live rows")
}

// produce commits n orders.
func (w *world) produce(n int) *scenario.Produced {
	w.Helper()
	p, err := scenario.Produce(w.ctx, w.shop.DSN(w.shop.App, "127.0.0.1", w.server.Port), scenario.Plan{Orders: n, Writers: 4, NoPoison: true})
	w.must(err)
	return p
}

// explain logs the objects and logs of a failed spec.
func (w *world) explain() {
	if !w.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"describe", "outboxdispatchers"}, {"get", "pods,jobs,deployments", "-o", "wide"}, {"get", "events"},
		{"logs", "-l", "outbox.dev/dispatcher=orders", "--tail=30", "--prefix"},
		{"-n", "outbox-system", "logs", "-l", "app.kubernetes.io/name=outbox-operator", "--prefix", "--tail=40"},
	} {
		out, err := cluster.Run(ctx, append([]string{"-n", w.manifests.Namespace}, args...)...)
		w.Logf("kubectl %s: %v\n%s", scenario.Shell(args), err, out)
	}
}

// consumer is a scenario.Consumer whose listener can be closed and reopened.
type consumer struct {
	*scenario.Consumer
	t       testing.TB
	address string
	server  atomic.Pointer[http.Server]
}

func newConsumer(t testing.TB) *consumer {
	t.Helper()
	c := &consumer{Consumer: &scenario.Consumer{}, t: t, address: net.JoinHostPort(cluster.HostListen, "0")}
	c.open()
	t.Cleanup(c.close)
	return c
}

// url is where pods reach it.
func (c *consumer) url() string {
	_, port, _ := net.SplitHostPort(c.address)
	return "http://" + net.JoinHostPort(cluster.HostIP, port)
}

func (c *consumer) open() {
	c.t.Helper()
	listener, err := net.Listen("tcp", c.address)
	need.OK(c.t, err)
	c.address = listener.Addr().String()
	server := &http.Server{Handler: c.Consumer, ReadHeaderTimeout: 10 * time.Second}
	c.server.Store(server)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.t.Errorf("the consumer: %v", err)
		}
	}()
}

// close refuses connections from now on.
func (c *consumer) close() { _ = c.server.Load().Close() }

// CONTRACT: C-10 C-11 C-20 C-22 C-24 C-43 C-70 C-100
var _ = It("does the main job, as the demo shows it", Label("main", "gate"), func() {
	w := newWorld("main")
	w.manifests.Replicas = 2
	w.consumer.Work = 5 * time.Millisecond
	w.ready()
	w.consumer.Work = 20 * time.Millisecond // so that each pod holds events at any moment

	story := &scenario.Story{
		Stage: w.dispatcher, Shop: w.shop, AppDSN: w.shop.DSN(w.shop.App, "127.0.0.1", w.server.Port), ConsumerURL: "http://" + w.consumer.address,
		Plan: scenario.Plan{Orders: 24_000, Writers: 8, RollbackPercent: 10, ResendPercent: 5}, Out: os.Stdout,
	}
	ledger, err := story.Play(w.ctx)
	w.must(err)
	ledger.Print(os.Stdout)
	if err := ledger.Err(); err != nil {
		w.Errorf("%v\nlost: %v\nwithout a commit: %v\nwithout a cause: %v", err, ledger.Lost, ledger.Ghosts, ledger.Unexplained)
	}
	if ledger.Committed < 20_000 || ledger.RolledBack < 1000 || ledger.Resent < 500 {
		w.Errorf("the story was too small: %+v, want 20000 committed, 1000 rolled back, 500 resent", ledger)
	}
	if len(ledger.Dead) != 1 || ledger.Dead["max_retries_exceeded"] != 1 {
		w.Errorf("dead: %v, want the poisoned event alone", ledger.Dead)
	}
	if ledger.Held == 0 {
		w.Error("the killed pod held no events, want some")
	}
	w.Logf("the killed pod's rows were all delivered %.1f s after the kill; lease + poll is 7 s", ledger.HeldAgain.Seconds())

	// The poisoned event is visible in the column, a condition and an Event.
	w.expect("DeadLettersPresent", "True", "DeadLetters")
	w.must(scenario.Until(w.ctx, "Pending 0 and Dead 1", func() (bool, string) {
		columns, err := w.dispatcher.Columns(w.ctx)
		if err != nil {
			return false, err.Error()
		}
		row := strings.Fields(strings.Split(columns, "\n")[1])
		return row[3] == "0" && row[4] == "1", columns
	}))
	w.must(scenario.Until(w.ctx, "an Event with reason DeadLetters", func() (bool, string) {
		out, err := cluster.Run(w.ctx, "-n", w.manifests.Namespace, "get", "events", "--field-selector=reason=DeadLetters", "-o", "name")
		return err == nil && strings.Contains(out, "event"), out
	}))
})

// A clean stop releases all leases, so no event is delivered twice.
//
// CONTRACT: C-30
var _ = It("delivers each event once while pods are deleted under load", Label("main"), func() {
	w := newWorld("roll")
	w.manifests.Replicas = 2
	w.consumer.Work = 5 * time.Millisecond
	w.ready()
	produced := w.produce(10_000)
	_, err := cluster.Run(w.ctx, "-n", w.manifests.Namespace, "delete", "pods", "-l", "outbox.dev/component=dispatcher", "--wait=false")
	w.must(err)
	w.drained()
	ledger, err := scenario.Balance(w.ctx, w.shop.Admin, produced, w.consumer.Deliveries(), nil)
	w.must(err)
	w.must(ledger.Err())
	if ledger.Delivered != 10_000 || ledger.Duplicates != 0 {
		w.Errorf("%d delivered and %d duplicates, want 10000 and 0", ledger.Delivered, ledger.Duplicates)
	}
})

// kubectl runs in the world's namespace.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := cluster.Run(w.ctx, append([]string{"-n", w.manifests.Namespace}, args...)...)
	w.must(err)
	return out
}

// noCrashes fails when a container was started more than once.
func (w *world) noCrashes() {
	w.Helper()
	restarts := w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	if strings.Trim(restarts, "0 ") != "" {
		w.Errorf("containers were restarted: %s", restarts)
	}
}

// stay fails unless a condition keeps its status for d.
func (w *world) stay(d time.Duration, kind, status string) {
	w.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := w.dispatcher.Condition(w.ctx, kind)
		w.must(err)
		if c.Status != status {
			w.Fatalf("%s became %s %s while the cause lasted", kind, c.Status, c.Reason)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-w.ctx.Done():
			w.Fatal(w.ctx.Err())
		}
	}
}

func (w *world) merge(into, from *scenario.Produced) {
	for id := range from.Committed {
		into.Committed[id] = true
	}
}

// tlsConsumer serves the handler with a certificate of its own CA, and makes a second CA.
func tlsConsumer(t testing.TB, handler http.Handler) (url, rightCA, wrongCA string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(cluster.HostListen, "0"))
	need.OK(t, err)
	right := sinktest.NewAuthority(t, "right")
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{right.Sign(t, "consumer", time.Now().Add(time.Hour), cluster.HostIP).TLS}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "https://" + net.JoinHostPort(cluster.HostIP, port), right.PEM, sinktest.NewAuthority(t, "wrong").PEM
}
