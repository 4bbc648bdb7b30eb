package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// An operator of another version, with a definition of one more default, rolls its dispatchers a few at a time, after one
// migration of their database.
//
// CONTRACT: C-102 C-104
var _ = Describe("an upgrade of the operator", Label("upgrade"), Ordered, func() {
	const (
		dispatchers = 20
		rolling     = 3 // --max-rolling-upgrades
		next        = "outbox-operator:next"
	)
	var w *world

	BeforeAll(func() {
		w = newWorld("upgrade")
		w.consumer.Work = 5 * time.Millisecond
		w.shopOutbox("")
		create := func(i int) {
			w.apply(fmt.Sprintf("apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: d%[2]d, namespace: %[1]s}\nspec:\n  outboxRef: {name: shop}\n  namespace: tenant-%[2]d\n  sink: {http: {url: %[3]q}}\n",
				w.manifests.Namespace, i, w.manifests.SinkURL))
		}
		// The version before has no default for this field, so the next one reads each spec differently.
		w.defaultOf("remove", "maxInFlightBytes", "33554432")
		DeferCleanup(func() { w.defaultOf("add", "maxInFlightBytes", "33554432") })
		Eventually(func() string { // until the API server has heard of it
			w.kubectl("delete", "obd", "d0", "--ignore-not-found")
			create(0)
			return w.kubectl("get", "obd", "d0", "-o", "jsonpath={.spec.delivery.maxInFlightBytes}")
		}).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
		for i := 1; i < dispatchers; i++ {
			create(i)
		}
		w.kubectl("wait", "obd", "--all", "--for=condition=Ready", "--timeout=5m")
		w.kubectl("wait", "outbox/shop", "--for=condition=Ready", "--timeout=1m")
		w.must(cluster.LoadImage(w.ctx, next))
		DeferCleanup(func() { w.operatorImage(scenario.Image) })
	})

	It("rolls a few dispatchers at a time, migrates once, and loses nothing", func() {
		jobs := len(strings.Fields(w.kubectl("get", "jobs", "-o", "name")))
		Expect(jobs).To(Equal(1), "one migration for twenty dispatchers")
		made := w.produceForTenants(dispatchers, func() {
			w.defaultOf("add", "maxInFlightBytes", "33554432")
			w.operatorImage(next)
			most := 0
			Eventually(func(g Gomega) {
				at, left := w.rollouts(next)
				most = max(most, at)
				g.Expect(left).To(BeZero(), "dispatchers with the old image")
				g.Expect(at).To(BeZero(), "rollouts in progress")
			}).WithTimeout(8 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
			w.Logf("at most %d of %d dispatchers rolled at a time; %d is the bound", most, dispatchers, rolling)
			Expect(most).To(BeNumerically("<=", rolling))
		})
		w.drained()
		Expect(w.number("select count(*) from outbox.outbox_events where status = 'delivered'")).To(Equal(made))
		Expect(w.number("select count(*) from outbox.outbox_dead_letters")).To(BeZero())
		images := strings.Fields(w.kubectl("get", "jobs", "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}"))
		Expect(images).To(ConsistOf(next), "the one migration of the new version")
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

// rollouts counts the Deployments that roll, and those that have another image.
func (w *world) rollouts(image string) (rolling, left int) {
	w.Helper()
	var all appsv1.DeploymentList
	w.must(json.Unmarshal([]byte(w.kubectl("get", "deployments", "-o", "json")), &all))
	for _, d := range all.Items {
		switch {
		case d.Spec.Template.Spec.Containers[0].Image != image:
			left++
		case d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < *d.Spec.Replicas ||
			d.Status.Replicas > d.Status.UpdatedReplicas || d.Status.AvailableReplicas < *d.Spec.Replicas:
			rolling++
		}
	}
	return rolling, left
}

// produceForTenants inserts events for each tenant while something is done, and returns how many.
func (w *world) produceForTenants(tenants int, while func()) int64 {
	w.Helper()
	conn, err := pgx.Connect(w.ctx, w.shop.Admin)
	w.must(err)
	defer conn.Close(w.ctx)
	stop, made := make(chan struct{}), make(chan int64, 1)
	go func() {
		var n int64
		defer func() { made <- n }()
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			tag, err := conn.Exec(w.ctx, `insert into outbox.outbox_events (id, namespace, topic, payload)
				select gen_random_uuid(), 'tenant-' || i, 'orders', '{}' from generate_series(0, $1 - 1) i`, tenants)
			if err != nil {
				return // the test then fails at the counts
			}
			n += tag.RowsAffected()
		}
	}()
	while()
	close(stop)
	return <-made
}
