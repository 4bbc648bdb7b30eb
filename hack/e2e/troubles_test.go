package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
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
	if n := w.number("select max(attempts) from outbox.outbox_events"); n != 0 {
		w.Errorf("the wrong CA spent %d attempts of a row", n)
	}
	w.apply(secret(rightCA))
	w.expectWithin(3*time.Minute, "Ready", "True", "Delivering") // the kubelet takes up to 90 seconds to renew a file
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
	if err != nil {
		t.Fatal(err)
	}
	return d
}
