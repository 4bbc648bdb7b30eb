package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("labels of an object", Label("workload"), func() {
	It("are inherited by what is made for it, when the operator is to", func() {
		c := start(tick)
		c.stop()
		c.inherited = []string{"team", "cost-center", "app.kubernetes.io/name"}
		c.stop = c.run(tick)
		obd := c.migrated()
		obd.Labels = map[string]string{"team": "shop", "cost-center": "4711", "app.kubernetes.io/name": "orders", "other": "x"}
		obd.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{"cost-center":"42"}}}`)}
		c.create(obd)
		job := c.job()
		Expect(job.Labels).To(HaveKeyWithValue("team", "shop"))
		Expect(job.Spec.Template.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("app.kubernetes.io/name", "outbox-migration")))
		c.succeed()
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		d := c.deployment()
		Expect(d.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("cost-center", "4711"), HaveKeyWithValue("app.kubernetes.io/name", "outbox-dispatcher"), Not(HaveKey("other"))))
		Expect(d.Spec.Template.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("cost-center", "42"), Not(HaveKey("other"))))
		for _, labels := range []map[string]string{c.files().Labels, fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").Labels, fetch(c, pdb(c), "orders-dispatcher").Labels} {
			Expect(labels).To(HaveKeyWithValue("team", "shop"))
		}
		c.settle()
		before := len(c.requests.writes())
		c.passes(3)
		Expect(c.requests.writes()[before:]).To(BeEmpty())

		edit(c, obd, func(o *api.OutboxDispatcher) { delete(o.Labels, "team") })
		Eventually(func() map[string]string { return c.deployment().Spec.Template.Labels }).ShouldNot(HaveKey("team"))
		Eventually(func() map[string]string { return c.files().Labels }).ShouldNot(HaveKey("team"))
		Expect(c.jobs()).To(HaveLen(1), "another label does not migrate again")
	})
})
