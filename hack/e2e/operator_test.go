package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Delivery continues without the operator and without the API server, and the status says what is not observed.
//
// CONTRACT: C-101
var _ = Describe("while the operator is in trouble", Label("operator"), Ordered, func() {
	var w *world

	BeforeAll(func() {
		w = newWorld("operator")
		w.ready()
		w.trickle()
		w.claiming()
	})

	It("another manager takes over when the leader is killed", func() {
		leader := w.leader()
		w.must(cluster.Signal(w.ctx, w.pidOf(leader), syscall.SIGKILL))
		w.claiming()
		w.patch(`{"spec":{"replicas":2}}`)
		Eventually(w.replicas).Should(Equal("2"), "the next leader applies the change")
		w.expect("Ready", "True", "Delivering")
	})

	It("recovers when the API server is killed", func() {
		pid := apiServer()
		if pid == 0 {
			Skip("this cluster's API server does not run on this machine")
		}
		w.must(syscall.Kill(pid, syscall.SIGKILL))
		w.claiming() // reads the database alone
		Eventually(func() error { _, err := cluster.Run(w.ctx, "get", "--raw", "/readyz"); return err }).Should(Succeed())
		w.patch(`{"spec":{"replicas":1}}`)
		Eventually(w.replicas).Should(Equal("1"))
		w.expect("Ready", "True", "Delivering")
	})

	It("reports NotObserved when its pod is unreachable, and delivery continues", func() {
		var ips []string // of one pod: the spec above removed the other
		Eventually(func() []string {
			ips = strings.Fields(w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].status.podIP}"))
			return ips
		}).Should(HaveLen(1))
		netns := "/proc/" + strconv.Itoa(w.pidOf(w.leader())) + "/ns/net"
		route := func(verb string) {
			_, err := cluster.OnNode(w.ctx, "nsenter", "--net="+netns, "ip", "route", verb, "blackhole", ips[0]+"/32")
			w.must(err)
		}
		route("add")
		c := w.expect("Ready", "Unknown", "NotObserved")
		Expect(c.Message).To(ContainSubstring("NetworkPolicy"))
		w.claiming()
		route("del")
		w.expect("Ready", "True", "Delivering")
	})
})

// replicas of the dispatcher's Deployment.
func (w *world) replicas() string {
	w.Helper()
	return w.kubectl("get", "deployment", "orders-dispatcher", "-o", "jsonpath={.spec.replicas}")
}

// leader is the pod of the manager that leads.
func (w *world) leader() string {
	w.Helper()
	holder, err := cluster.Run(w.ctx, "-n", "outbox-system", "get", "leases", "-o", "jsonpath={.items[0].spec.holderIdentity}")
	w.must(err)
	pod, _, _ := strings.Cut(holder, "_")
	return pod
}

// pidOf is the process of a manager.
func (w *world) pidOf(pod string) int {
	w.Helper()
	pid, err := cluster.PID(w.ctx, "outbox-system", pod, "manager")
	w.must(err)
	return pid
}

// apiServer is the process of the cluster's API server, 0 where it does not run on this machine.
func apiServer() int {
	network := cluster.HostIP[:strings.LastIndex(cluster.HostIP, ".")+1] // only this cluster uses it
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a process that just ended
		}
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) == "kube-apiserver" && strings.Contains(string(text), "--advertise-address\x00"+network) {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			Expect(err).NotTo(HaveOccurred())
			return pid
		}
	}
	return 0
}

// An operator of another version, with a definition of one more default, migrates and rolls its dispatchers a few at a time.
// Each has a database of its own. There are 20 of them, or UPGRADE_DISPATCHERS.
//
// CONTRACT: C-102 C-104
var _ = Describe("an upgrade of the operator", Label("upgrade", "gate"), Ordered, func() {
	const (
		rolling = 3 // --max-rolling-upgrades
		next    = "outbox-operator:next"
	)
	dispatchers := 20
	var w *world
	var tenants []*scenario.Shop

	BeforeAll(func() {
		w = newWorld("upgrade")
		if text := os.Getenv("UPGRADE_DISPATCHERS"); text != "" {
			var err error
			dispatchers, err = strconv.Atoi(text)
			w.must(err)
		}
		w.consumer.Work = 5 * time.Millisecond
		w.exec("alter system set max_connections = 1500")
		w.must(w.server.Restart(w.ctx))
		// On a node of two cores no more than 39 have the usual request of CPU time.
		small := "  pods: {template: {spec: {containers: [{name: dispatcher, resources: {requests: {cpu: 5m}}}]}}}\n"
		manifests := func(i int) scenario.Manifests {
			m, tenant := w.manifests, tenants[i]
			m.Name = fmt.Sprint("d", i)
			m.DispatcherDSN, m.OwnerDSN = tenant.DSN(tenant.Dispatcher, cluster.HostIP, w.server.Port), tenant.DSN(tenant.Owner, cluster.HostIP, w.server.Port)
			return m
		}
		for i := range dispatchers {
			tenant, err := scenario.NewShop(w.ctx, fmt.Sprint("tenant", i), w.server.DSN)
			w.must(err)
			tenants = append(tenants, tenant)
			w.apply(manifests(i).Secrets())
		}
		// The version before has no default for this field, so the next one reads each spec differently.
		w.defaultOf("remove", "maxInFlightBytes", "33554432")
		DeferCleanup(func() { w.defaultOf("add", "maxInFlightBytes", "33554432") })
		Eventually(func() string { // until the API server has heard of it
			w.kubectl("delete", "obd", "d0", "--ignore-not-found")
			w.apply(manifests(0).Dispatcher() + small)
			return w.kubectl("get", "obd", "d0", "-o", "jsonpath={.spec.delivery.maxInFlightBytes}")
		}).Should(BeEmpty())
		for i := 1; i < dispatchers; i++ {
			w.apply(manifests(i).Dispatcher() + small)
		}
		w.kubectl("wait", "obd", "--all", "--for=condition=Ready", "--timeout=10m")
		w.must(cluster.LoadImage(w.ctx, next))
		DeferCleanup(func() { w.operatorImage(scenario.Image) })
	})

	It("migrates and rolls a few dispatchers at a time, and loses nothing", func() {
		made := w.produceForTenants(tenants, func() {
			w.defaultOf("add", "maxInFlightBytes", "33554432")
			w.operatorImage(next)
			most, done := 0, map[string]bool{}
			Eventually(func(g Gomega) {
				at, left, ended := w.rollouts(next)
				for _, name := range ended {
					done[name] = true
				}
				maps.DeleteFunc(at, func(name string, _ bool) bool { return done[name] }) // its pod is not ready for a moment
				most = max(most, len(at))
				g.Expect(left).To(BeZero(), "dispatchers with the old image")
				g.Expect(at).To(BeEmpty(), "rollouts in progress")
			}).WithTimeout(4 * need.Wait).Should(Succeed())
			w.Logf("at most %d of %d dispatchers rolled or migrated at a time; %d is the bound", most, dispatchers, rolling)
			Expect(most).To(BeNumerically("<=", rolling))
		})
		for _, tenant := range tenants {
			Eventually(func() int64 { return w.numberOf(tenant, "select count(*) from outbox.outbox_events where live") }).Should(BeZero())
			Expect(w.numberOf(tenant, "select count(*) from outbox.outbox_events where status = 'delivered'")).To(Equal(made))
			Expect(w.numberOf(tenant, "select count(*) from outbox.outbox_dead_letters")).To(BeZero())
		}
		images := strings.Fields(w.kubectl("get", "jobs", "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}"))
		Expect(images).To(And(HaveLen(dispatchers), HaveEach(next)), "one migration of each database")
	})
})

// operatorImage gives the operator another image, for itself and for its dispatchers, and waits for it.
func (w *world) operatorImage(image string) {
	w.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":%q}]`, image)
	for _, args := range [][]string{
		{"patch", "deployment", "outbox-operator", "--type=json", "-p", patch},
		{"rollout", "status", "deployment", "outbox-operator", "--timeout=3m"},
	} {
		_, err := cluster.Run(w.ctx, append([]string{"-n", "outbox-system"}, args...)...)
		w.must(err)
	}
}

// defaultOf adds or removes the default of a field of spec in the definition of OutboxDispatchers.
func (w *world) defaultOf(op, field, value string) {
	w.Helper()
	patch := fmt.Sprintf(`[{"op":%q,"path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/delivery/properties/%s/default","value":%s}]`, op, field, value)
	w.kubectl("patch", "crd", "outboxdispatchers.outbox.dev", "--type=json", "-p", patch)
}

// rollouts returns the dispatchers that roll or migrate, how many have another image, and those whose pods have this one.
func (w *world) rollouts(image string) (rolling map[string]bool, left int, ended []string) {
	w.Helper()
	var all struct {
		Items []struct {
			appsv1.Deployment
			Status struct {
				appsv1.DeploymentStatus
				Active int `json:"active"` // of a Job
			} `json:"status"`
		}
	}
	w.must(json.Unmarshal([]byte(w.kubectl("get", "deployments,jobs", "-o", "json")), &all))
	rolling = map[string]bool{}
	for _, d := range all.Items {
		replicas := int32(0)
		if d.Spec.Replicas != nil { // else it is a Job
			replicas = *d.Spec.Replicas
		}
		switch {
		case replicas > 0 && d.Spec.Template.Spec.Containers[0].Image != image:
			left++
		case replicas > 0 && d.Status.ObservedGeneration < d.Generation, d.Status.Active > 0, d.Status.UpdatedReplicas < replicas,
			d.Status.Replicas > d.Status.UpdatedReplicas, d.Status.AvailableReplicas < replicas:
			rolling[d.Labels["outbox.dev/dispatcher"]] = true
		case replicas > 0:
			ended = append(ended, d.Labels["outbox.dev/dispatcher"])
		}
	}
	return rolling, left, slices.DeleteFunc(ended, func(name string) bool { return rolling[name] })
}

// produceForTenants inserts events for each tenant while something is done, and returns how many each has.
func (w *world) produceForTenants(tenants []*scenario.Shop, while func()) (each int64) {
	w.Helper()
	var conns []*pgx.Conn
	for _, tenant := range tenants {
		conn, err := pgx.Connect(w.ctx, tenant.Admin)
		w.must(err)
		defer conn.Close(w.ctx)
		conns = append(conns, conn)
	}
	stop, made := make(chan struct{}), make(chan int64, 1)
	go func() {
		var n int64
		defer func() { made <- n }()
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
			for _, conn := range conns {
				if _, err := conn.Exec(w.ctx, "insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', 'orders', '{}')"); err != nil {
					return // the test then fails at the counts
				}
			}
			n++
		}
	}()
	while()
	close(stop)
	return <-made
}

// numberOf is number in the database of a tenant.
func (w *world) numberOf(tenant *scenario.Shop, sql string) (n int64) {
	w.Helper()
	conn, err := pgx.Connect(w.ctx, tenant.Admin)
	w.must(err)
	defer conn.Close(w.ctx)
	w.must(conn.QueryRow(w.ctx, sql).Scan(&n))
	return n
}

// A release is installed over the one before and taken back, by install.yaml and by Helm, each from its own files alone, the
// definitions included. Before there are two releases, the one before is made of a commit whose schema is older.
var _ = Describe("a release", Label("helm"), Ordered, func() {
	const older = "4a2085eddb947ef1eed07c7a0be19eed4b13bec3" // its last migration is 0007
	var w *world
	var before, after release
	var produced func() *scenario.Produced

	BeforeAll(func(ctx SpecContext) {
		if runtime.GOOS != "linux" {
			Skip("hack/release -try makes an image on Linux alone")
		}
		clone, commit := GinkgoT().TempDir(), older
		if err := in(ctx, "../..", "git", "cat-file", "-e", commit); err != nil {
			GinkgoWriter.Println("The history has no commit", older, "so both releases are of this one. To fetch it: git fetch --unshallow")
			commit = "HEAD"
		}
		Expect(in(ctx, ".", "git", "clone", "-q", "--shared", "--no-checkout", "../..", clone)).To(Succeed())
		Expect(in(ctx, clone, "git", "checkout", "-q", commit)).To(Succeed())
		before, after = newRelease(ctx, clone, "v0.0.9"), newRelease(ctx, "../..", "v0.1.0")
		w = newWorld("helm")
		DeferCleanup(func(ctx SpecContext) {
			Expect(cluster.Install(ctx)).To(Succeed(), "install with kustomize again")
		})
		w.install(before)
		w.consumer.Work = 500 * time.Millisecond // so that events are in flight at any moment
		w.manifests.Replicas = 2
		w.ready()
		produced = w.trickle()
		w.delivers(before)
		if commit == older {
			Expect(w.migration()).To(BeEquivalentTo(7))
		}
	})

	It("is installed over the one before by install.yaml, and again without a change", func() {
		w.install(after)
		w.delivers(after)
		changes, _ := cluster.Run(w.ctx, "diff", "--server-side", "--force-conflicts", "-f", after.file("install.yaml"))
		Expect(changes).To(BeEmpty())
	})

	It("is taken back by the other's install.yaml", func() {
		w.install(before)
		w.delivers(before)
	})

	It("is upgraded to by Helm, which took the one before over", func() {
		w.helm("install", "outbox-operator", before.chart(), "--take-ownership", "--force-conflicts", "--wait")
		w.delivers(before)
		w.helm("upgrade", "outbox-operator", after.chart(), "--force-conflicts", "--wait") // kubectl owns the image too
		w.delivers(after)
	})

	It("is rolled back by Helm", func() {
		w.helm("rollback", "outbox-operator", "1", "--force-conflicts", "--wait")
		w.delivers(before)
	})

	It("is uninstalled, and keeps what people made", func() {
		w.helm("uninstall", "outbox-operator", "--wait")
		w.claiming()
		Expect(w.kubectl("get", "obd", "orders", "-o", "name")).To(ContainSubstring("orders"))
	})

	It("has lost nothing in all of that, and doubled nothing", func() {
		events := produced()
		w.drained()
		ledger, err := scenario.Balance(w.ctx, w.shop.Admin, events, w.consumer.Deliveries(), nil)
		w.must(err)
		ledger.Print(os.Stdout)
		w.must(ledger.Err())
		Expect(ledger.Dead).To(BeEmpty())
		w.noCrashes()
	})
})

// release is what hack/release made for this machine's platform.
type release struct{ dir, version, digest string }

// newRelease makes the release of a checkout, and loads its image.
func newRelease(ctx context.Context, checkout, version string) release {
	GinkgoHelper()
	r := release{dir: filepath.Join(GinkgoT().TempDir(), version), version: version}
	Expect(in(ctx, checkout, "go", "run", "./hack/release", "-try", version, r.dir)).To(Succeed())
	text, err := os.ReadFile(r.file("install.yaml"))
	Expect(err).NotTo(HaveOccurred())
	r.digest = regexp.MustCompile(`@sha256:\w+`).FindString(string(text))
	Expect(cluster.LoadArchive(ctx, r.file("outbox-operator_"+version+".image.tar"))).To(Succeed())
	return r
}

func (r release) file(name string) string { return filepath.Join(r.dir, name) }

func (r release) chart() string {
	return r.file("outbox-operator-" + strings.TrimPrefix(r.version, "v") + ".tgz")
}

// in runs a command in a folder. An error has its output.
func in(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return err
}

// install applies a release's install.yaml, and waits until its operator leads.
func (w *world) install(r release) {
	w.Helper()
	w.must(need.Err(cluster.Run(w.ctx, "apply", "--server-side", "--force-conflicts", "-f", r.file("install.yaml"))))
	Eventually(func() string {
		image, _ := cluster.Run(w.ctx, "-n", "outbox-system", "get", "pod", w.leader(), "-o", "jsonpath={.spec.containers[0].image}")
		return image // empty when the pod is gone
	}).Should(HaveSuffix(r.digest), "the image of the operator that leads")
}

// migration is the newest of the schema.
func (w *world) migration() int64 {
	return w.number("select max(version) from outbox.outbox_migrations")
}

// delivers waits until each pod of the dispatcher is of the release, and delivers.
func (w *world) delivers(r release) {
	w.Helper()
	begin := time.Now()
	Eventually(func() []string {
		return strings.Fields(w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].spec.containers[0].image}"))
	}).Should(And(HaveLen(w.manifests.Replicas), HaveEach(HaveSuffix(r.digest))))
	w.expect("Ready", "True", "Delivering")
	w.claiming()
	w.Logf("%s delivers after %.0f s, with migration %d", r.version, time.Since(begin).Seconds(), w.migration())
}

// helm runs the helm that hack/pins/tool.sh pins; the first call of a machine builds it.
func (w *world) helm(args ...string) {
	w.Helper()
	path, err := exec.CommandContext(w.ctx, "../pins/tool.sh", "helm").Output()
	w.must(err)
	dir := w.TempDir()
	cmd := exec.CommandContext(w.ctx, strings.TrimSpace(string(path)), append(args, "--namespace", "outbox-system", "--kubeconfig", cluster.Kubeconfig)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir, "NO_PROXY=*", "no_proxy=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
