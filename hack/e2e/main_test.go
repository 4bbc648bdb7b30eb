// Package e2e proves the main job on a real cluster: real pods on a real kubelet, a real
// PostgreSQL, a real consumer. It runs when OUTBOX_E2E is 1, as `make test` sets it. LABELS picks a part:
// `make test-e2e LABELS="troubles || counts"`.
package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

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
		stopCtx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
	w.must(w.dispatcher.WaitReady(w.ctx, 3*time.Minute))
	w.must(w.shop.GrantApp(w.ctx))
}

func (w *world) apply(manifests string) {
	w.Helper()
	w.must(cluster.Apply(w.ctx, manifests))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// expect waits for a condition and logs it.
func (w *world) expect(kind, status, reason string) scenario.Condition {
	w.Helper()
	return w.expectWithin(90*time.Second, kind, status, reason)
}

// expectWithin is expect with its own bound.
func (w *world) expectWithin(bound time.Duration, kind, status, reason string) scenario.Condition {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, bound)
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
	Eventually(func() int64 { return w.number("select count(*) from outbox.outbox_events where live") }).
		WithTimeout(5*time.Minute).WithPolling(time.Second).Should(BeZero(), "live rows")
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
	if err != nil {
		c.t.Fatal(err)
	}
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
