package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/promtool"
)

// Each trouble gives a condition with a reason and a remedy, no crash loop and no lost row. The dispatcher recovers by
// itself when the cause is fixed.
//
// CONTRACT: C-32 C-101 C-102
var _ = Describe("a dispatcher in trouble", Label("troubles"), Ordered, func() {
	var w *world
	var all *scenario.Produced

	BeforeAll(func() {
		w = newWorld("troubles")
		w.ready()
		all = w.produce(100)
	})

	for _, trouble := range []struct {
		name                 string
		cause, fix           func()
		kind, status, reason string
		// remedy is the part of the message that says what to do.
		remedy string
	}{
		{
			name: "Secret missing", // a pod needs it when it starts
			cause: func() {
				w.kubectl("delete", "secret", "orders-db")
				w.kubectl("patch", "obd", "orders", "--type", "merge", "-p", `{"spec":{"delivery":{"batchSize":499}}}`)
			},
			fix:  func() { w.apply(w.manifests.Secrets()) },
			kind: "ReferencesResolved", status: "False", reason: "SecretNotFound", remedy: "orders-db",
		},
		{
			name: "password wrong", // running pods keep their connections
			cause: func() {
				wrong := w.manifests
				wrong.DispatcherDSN = strings.Replace(wrong.DispatcherDSN, w.shop.Dispatcher.Password, "wrong", 1)
				w.apply(wrong.Secrets())
				w.patch(`{"spec":{"delivery":{"batchSize":498}}}`)
			},
			fix: func() {
				w.apply(w.manifests.Secrets())
				w.patch(`{"spec":{"delivery":{"batchSize":497}}}`) // a new pod has the new Secret at once
			},
			kind: "SourceReachable", status: "False", reason: "AuthenticationFailed", remedy: "password",
		},
		{
			name:  "database stopped",
			cause: func() { w.server.Kill() },
			fix: func() {
				w.stay(downtime(w), "SourceReachable", "False")
				w.must(w.server.Restart(w.ctx))
			},
			kind: "SourceReachable", status: "False", reason: "ConnectionFailed", remedy: "check that the server runs",
		},
		{
			name: "schema too new",
			cause: func() {
				w.exec("insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (99, 'future', 'x', 99)")
			},
			fix:  func() { w.exec("delete from outbox.outbox_migrations where version = 99") },
			kind: "SchemaReady", status: "False", reason: "TooNew", remedy: "image",
		},
		{
			name: "schema too old",
			// No version is older than the first one, so impossible ones play it.
			cause: func() { w.exec("update outbox.outbox_migrations set version = -version") },
			fix:   func() { w.exec("update outbox.outbox_migrations set version = -version") },
			kind:  "SchemaReady", status: "False", reason: "TooOld", remedy: "migrate up",
		},
		{
			name:  "sink refusing connections",
			cause: func() { w.consumer.close() },
			fix: func() {
				if n := w.number("select max(attempts) from outbox.outbox_events where live"); n > 1 {
					w.Errorf("the outage spent %d attempts of a row", n)
				}
				w.consumer.open()
			},
			kind: "SinkReachable", status: "False", reason: "ConnectionFailed", remedy: "check that it runs",
		},
		{
			name:  "sink responding 500",
			cause: func() { w.consumer.Respond(500) },
			fix:   func() { w.consumer.Respond(0) },
			kind:  "SinkReachable", status: "False", reason: "Refusing", remedy: "log says why",
		},
	} {
		It("reports and recovers from: "+trouble.name, func() {
			trouble.cause()
			if trouble.name != "database stopped" { // the shop needs it too
				w.merge(all, w.produce(60))
			}
			c := w.expect(trouble.kind, trouble.status, trouble.reason)
			Expect(c.Message).To(ContainSubstring(trouble.remedy), "the remedy in the message")
			ready, err := w.dispatcher.Condition(w.ctx, "Ready")
			w.must(err)
			columns, err := w.dispatcher.Columns(w.ctx)
			w.must(err)
			w.Logf("Ready=%s %s: %s\n%s", ready.Status, ready.Reason, ready.Message, columns)
			trouble.fix()
			w.expect("Ready", "True", "")
			w.noCrashes()
		})
	}

	It("loses nothing in all of that", func() {
		w.drained()
		ledger, err := scenario.Balance(w.ctx, w.shop.Admin, all, w.consumer.Deliveries(), nil)
		w.must(err)
		ledger.Print(os.Stdout)
		// A database that is killed loses acks, so duplicates have a cause here.
		Expect([]any{ledger.Lost, ledger.Ghosts, ledger.Dead}).To(HaveEach(BeEmpty()), "lost, ghosts and dead")
	})
})

// CONTRACT: C-32 C-101
var _ = It("spends no attempt on a CA that did not sign the consumer's certificate", Label("troubles"), func() {
	w := newWorld("ca")
	tlsURL, rightCA, wrongCA := tlsConsumer(w, w.consumer.Consumer)
	secret := func(ca string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: orders-ca, namespace: %s}\nstringData:\n  ca.crt: |\n%s", w.manifests.Namespace, scenario.Indent(ca))
	}
	w.apply(secret(wrongCA))
	obd := strings.Replace(w.manifests.Dispatcher(), fmt.Sprintf("http: {url: %q}", w.manifests.SinkURL),
		fmt.Sprintf("http: {url: %q}\n    tls: {caSecretRef: {name: orders-ca}}", tlsURL), 1)
	w.apply(obd)
	w.expect("SchemaReady", "True", "UpToDate")
	w.must(w.shop.GrantApp(w.ctx))
	produced := w.produce(50)
	w.expect("SinkReachable", "False", "CertificateInvalid")
	w.noCrashes()
	need.Want(w, 0, "the wrong CA spent %d attempts of a row", w.number("select max(attempts) from outbox.outbox_events"))
	w.apply(secret(rightCA))
	w.expect("Ready", "True", "Delivering") // the kubelet takes up to 90 seconds to renew a file
	w.drained()
	ledger, err := scenario.Balance(w.ctx, w.shop.Admin, produced, w.consumer.Deliveries(), nil)
	w.must(err)
	w.must(ledger.Err())
})

var _ = It("runs pods without an API token under the restricted Pod Security", Label("security"), func() {
	w := newWorld("restricted")
	w.ready()
	level, err := cluster.Run(w.ctx, "get", "namespace", w.manifests.Namespace, "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`)
	w.must(err)
	if level != "restricted" {
		w.Fatalf("the namespace enforces %q", level)
	}
	mounts := w.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[*].volumeMounts[*].mountPath} {.items[*].spec.volumes[*].projected}")
	if strings.Contains(mounts, "serviceaccount") || strings.Contains(mounts, "serviceAccountToken") {
		w.Errorf("a pod has an API token: %s", mounts)
	}
})

// downtime is how long the database is unreachable: two minutes unless OUTBOX_E2E_DOWNTIME says otherwise.
func downtime(t testing.TB) time.Duration {
	d, err := time.ParseDuration(os.Getenv("OUTBOX_E2E_DOWNTIME"))
	if os.Getenv("OUTBOX_E2E_DOWNTIME") == "" {
		return 2 * time.Minute
	}
	need.OK(t, err)
	return d
}

// CONTRACT: C-103
var _ = It("gives the operator no verb on Secrets", Label("secrets"), func(ctx SpecContext) {
	verbs := strings.Fields("get list watch create update patch delete deletecollection *")
	Expect(verbs).To(HaveLen(9))
	for _, verb := range verbs {
		// The verdict "no" is an exit code, too.
		verdict, _ := cluster.Run(ctx, "auth", "can-i", verb, "secrets", "--all-namespaces", "--as=system:serviceaccount:outbox-system:outbox-operator")
		Expect(strings.TrimSpace(verdict)).To(Equal("no"), verb)
	}
})

// A fault of a Secret is a condition. The kubelet and the pods report it.
//
// CONTRACT: C-102 C-103
var _ = Describe("a Secret", Label("secrets"), Ordered, func() {
	var w *world

	BeforeAll(func() {
		w = newWorld("secrets")
		w.ready()
	})

	// another applies a second dispatcher, of another outbox namespace, with a login of its own.
	another := func(secret, keys string) *world {
		other := *w
		manifest := strings.NewReplacer("name: orders,", "name: other,", "namespace: shop ", "namespace: other ",
			"secretRef: {name: orders-db}", "secretRef: {name: "+secret+keys+"}").Replace(w.manifests.Dispatcher())
		other.dispatcher = &scenario.Dispatcher{Cluster: cluster, Namespace: w.manifests.Namespace, Name: "other"}
		w.apply(manifest)
		DeferCleanup(func() { w.kubectl("delete", "obd", "other") })
		return &other
	}

	It("that is missing is a condition with its name, and is used when it appears", func() {
		other := another("absent", "")
		c := other.expect("ReferencesResolved", "False", "SecretNotFound")
		Expect(c.Message).To(ContainSubstring(`"absent"`))
		w.kubectl("create", "secret", "generic", "absent", "--from-literal=dsn="+w.manifests.DispatcherDSN)
		other.expect("Ready", "True", "")
	})

	It("without the key is a condition with the key", func() {
		other := another("orders-db", ", key: nokey")
		c := other.expect("ReferencesResolved", "False", "SecretKeyNotFound")
		Expect(c.Message).To(ContainSubstring("nokey"))
	})

	It("that is rotated is used without a restart, and costs no event", func() {
		pods := w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].metadata.uid}")
		w.trickle()
		w.claiming()
		const password = "rotated"
		rotated := w.manifests
		rotated.DispatcherDSN = strings.Replace(rotated.DispatcherDSN, w.shop.Dispatcher.Password, password, 1)
		w.exec("alter role " + w.shop.Dispatcher.User + " password '" + password + "'")
		w.apply(rotated.Secrets())
		// The pods keep open connections. Closing these makes them use the new password.
		w.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", w.shop.Dispatcher.User)
		// The kubelet takes up to 90 seconds. Until then the condition may be False; it may also pass by unseen.
		before := w.leases()
		Eventually(w.leases).Should(BeNumerically(">", before), "rows are claimed with the new password")
		w.expect("Ready", "True", "Delivering")
		w.noCrashes()
		Expect(w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].metadata.uid}")).To(Equal(pods), "the same pods")
		Expect(w.number("select count(*) from outbox.outbox_dead_letters")).To(BeZero())
		Expect(w.number("select coalesce(max(attempts), 0) from outbox.outbox_events")).To(BeNumerically("<=", 1))
	})
})

// A stop takes effect whatever else is wrong: here with what only a cluster does, and in controllers/outboxdispatcher with the
// rest. The log has how long it took: on a quiet machine up to 10 seconds for replicas 0, and up to 60 for Paused.
//
// CONTRACT: C-105
var _ = Describe("a stop", Label("stop"), Ordered, func() {
	var w *world

	BeforeAll(func() {
		w = newWorld("stop")
		w.ready()
		w.trickle()
	})

	DescribeTable("takes effect", func(stop, resume string, cause func() (undo func()), reported string) {
		w.must(w.dispatcher.WaitReady(w.ctx, need.Wait))
		w.claiming()
		undo := cause()
		if reported != "" {
			w.expect(reported, "True", "")
		}
		w.patch(stop)
		took := w.standstill()
		w.Logf("nothing is claimed %.1f s after the stop\n%s", took.Seconds(), w.kubectl("get", "obd,pods"))
		w.patch(resume)
		undo()
	},
		Entry("by replicas 0 while a quota refuses its pods", `{"spec":{"replicas":0}}`, `{"spec":{"replicas":1}}`, func() func() {
			w.kubectl("create", "quota", "none", "--hard=pods=0")
			w.patch(`{"spec":{"delivery":{"batchSize":100}}}`)
			return func() { w.kubectl("delete", "quota", "none") }
		}, "Reconciling"),
		Entry("by Paused while its Secret is deleted", `{"spec":{"state":"Paused"}}`, `{"spec":{"state":"Running"}}`, func() func() {
			w.kubectl("delete", "secret", "orders-db")
			return func() { w.apply(w.manifests.Secrets()) }
		}, ""),
		Entry("by Paused while an expression is wrong", Label("gate"), `{"spec":{"state":"Paused"}}`, `{"spec":{"state":"Running"}}`, func() func() {
			w.patch(`{"spec":{"message":{"transform":[{"payload":"payload.("}]}}}`)
			return func() { w.patch(`{"spec":{"message":{"transform":null}}}`) }
		}, "Stalled"),
	)
})

// patch changes the OutboxDispatcher as `kubectl patch` does.
func (w *world) patch(patch string) {
	w.Helper()
	w.kubectl("patch", "obd", "orders", "--type=merge", "-p", patch)
}

// trickle inserts an event every 100 ms until the container ends, or until the function that it returns is called, which
// returns them.
func (w *world) trickle() (end func() *scenario.Produced) {
	ctx, stop := context.WithCancel(w.ctx)
	conn, err := pgx.Connect(ctx, w.shop.Admin)
	w.must(err)
	produced := &scenario.Produced{Committed: map[uuid.UUID]bool{}}
	done := make(chan struct{})
	w.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			id := uuid.New()
			_, err := conn.Exec(w.ctx, "insert into outbox.outbox_events (id, namespace, topic, payload) values ($1, $2, $3, '{}')", id, scenario.Namespace, scenario.Topic)
			if err != nil {
				return // the next claiming() fails
			}
			produced.Committed[id] = true
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() *scenario.Produced { stop(); <-done; return produced }
}

// leases is the number of the newest lease: each claim that returns rows creates one.
func (w *world) leases() int64 { return w.number("select last_value from outbox.outbox_leases") }

// claiming waits until rows are claimed.
func (w *world) claiming() {
	w.Helper()
	before := w.leases()
	Eventually(w.leases).Should(BeNumerically(">", before), "rows are claimed")
}

// standstill waits until nothing has been claimed for 5 seconds, and returns when the last claim was.
func (w *world) standstill() time.Duration {
	w.Helper()
	const still = 5 * time.Second
	begin := time.Now()
	last, since := w.leases(), begin
	for time.Since(since) < still {
		if time.Since(begin) > need.Wait {
			w.Fatalf("rows are still claimed %s after the stop", time.Since(begin).Round(time.Second))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-w.ctx.Done():
			w.Fatal(w.ctx.Err())
		}
		if now := w.leases(); now != last {
			last, since = now, time.Now()
		}
	}
	return since.Sub(begin)
}

// With the rules as they are shipped and their own times, an outage of the destination fires the page within three minutes, then its
// cause, and nothing else. Five minutes after it nothing fires. Prometheus scrapes the pod and the operator.
//
// CONTRACT: C-98
var _ = It("fires the page and its cause in an outage, and nothing else", Label("outage"), func() {
	w := newWorld("outage")
	w.apply(w.manifests.Dispatcher() + "  objective: {freshness: 1m}\n")
	w.must(w.dispatcher.WaitReady(w.ctx, need.Wait))
	prometheus, err := promtool.Start(w.ctx, w.TempDir(), "../..", 0)
	need.Server(w, err, promtool.ErrMissing)
	w.Cleanup(prometheus.Stop)
	w.kubectl("create", "clusterrolebinding", "e2e-outage", "--clusterrole=outbox-operator-metrics-reader", "--serviceaccount="+w.manifests.Namespace+":default")
	DeferCleanup(func() { w.kubectl("delete", "clusterrolebinding", "e2e-outage") })
	token := strings.TrimSpace(w.kubectl("create", "token", "default", "--duration=1h"))
	pod := w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "jsonpath={.items[0].status.podIP}")
	managers, err := cluster.Run(w.ctx, "-n", "outbox-system", "get", "pods", "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].status.podIP}")
	w.must(err)
	for i, ip := range strings.Fields(managers) { // one of them leads
		w.must(prometheus.Scrape(fmt.Sprint("operator", i), "https://"+ip+":8443", token, map[string]string{"namespace": "outbox-system"}))
	}
	w.must(prometheus.Scrape("pod", pod+":8080", token, map[string]string{"namespace": w.manifests.Namespace, "pod": "orders"}))

	produce := func(lasts time.Duration) (began time.Time) {
		began = time.Now()
		for tick := time.NewTicker(time.Second); time.Since(began) < lasts; <-tick.C {
			w.exec("select outbox.enqueue('shop', 'orders', '{}') from generate_series(1, 5)")
		}
		return began
	}
	series := func(expr string, from, to time.Time) map[string][]float64 {
		all, err := prometheus.Range(w.ctx, expr, from, to)
		w.must(err)
		return all
	}
	const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
	const page, cause = "map[alertname:OutboxEventsLate]", "map[alertname:OutboxSinkDown]"
	began := produce(90 * time.Second)
	Expect(series("min(up)", began.Add(time.Minute), time.Now())).To(HaveKeyWithValue("map[]", HaveEach(1.0)), "the pod and the operator are scraped")
	w.consumer.close()
	outage := produce(6 * time.Minute)
	w.consumer.open()
	w.drained()
	after := produce(5*time.Minute + 30*time.Second).Add(5*time.Minute + 30*time.Second) // a scrape and an evaluation later
	fired := series(firing, outage, after)
	w.Logf("seconds of alerts: %d of the page, %d of its cause", len(fired[page]), len(fired[cause]))
	Expect(fired).To(And(HaveLen(2), HaveKey(page), HaveKey(cause)), "what fires")
	Expect(series(firing, outage, outage.Add(3*time.Minute))).To(HaveKey(page), "within three minutes")
	Expect(series(firing, after, after)).To(BeEmpty(), "five minutes after the outage")
})
