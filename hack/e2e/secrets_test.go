package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

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

// A fault of a Secret is a condition within 30 seconds. The kubelet and the pods report it.
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
		c := other.expectWithin(30*time.Second, "ReferencesResolved", "False", "SecretNotFound")
		Expect(c.Message).To(ContainSubstring(`"absent"`))
		w.kubectl("create", "secret", "generic", "absent", "--from-literal=dsn="+w.manifests.DispatcherDSN)
		other.expect("Ready", "True", "")
	})

	It("without the key is a condition with the key", func() {
		other := another("orders-db", ", key: nokey")
		c := other.expectWithin(30*time.Second, "ReferencesResolved", "False", "SecretKeyNotFound")
		Expect(c.Message).To(ContainSubstring("nokey"))
	})

	It("with a wrong password is a condition", func() {
		wrong := strings.Replace(w.manifests.DispatcherDSN, w.shop.Dispatcher.Password, "wrong", 1)
		w.kubectl("create", "secret", "generic", "wrong", "--from-literal=dsn="+wrong)
		another("wrong", "").expectWithin(30*time.Second, "SourceReachable", "False", "AuthenticationFailed")
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
		Eventually(w.leases).WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeNumerically(">", before), "rows are claimed with the new password")
		w.expectWithin(time.Minute, "Ready", "True", "Delivering")
		w.noCrashes()
		Expect(w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].metadata.uid}")).To(Equal(pods), "the same pods")
		Expect(w.number("select count(*) from outbox.outbox_dead_letters")).To(BeZero())
		Expect(w.number("select coalesce(max(attempts), 0) from outbox.outbox_events")).To(BeNumerically("<=", 1))
	})
})
