package outboxdispatcher_test

import (
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// operates runs the manager of an operator in that namespace, which gives dispatchers the image.
func (c *cluster) operates(operator, image string) *cluster {
	GinkgoHelper()
	o := &cluster{ctx: c.ctx, admin: c.admin, namespace: c.namespace, requests: &requests{}, pods: c.pods, operator: operator, image: image}
	o.stop = o.run(tick)
	return o
}

// changes are the writes so far other than Events.
func (c *cluster) changes() []string {
	return slices.DeleteFunc(c.requests.writes(), func(request string) bool { return strings.Contains(request, "/events") })
}

func (c *cluster) image1() string { return desired.Image(&c.deployment().Spec.Template.Spec) }

var _ = Describe("two operators of a namespace", Label("operators"), func() {
	// The Deployment of an object has one operator, and so has its status. CONTRACT: C-106
	It("leave each object to one of them, until it is handed over", func() {
		c := start(tick)
		c.stop()
		first := c.operates("outbox-system", "outbox-operator:v1")
		outbox := c.outbox()
		outbox.Spec.Migration = nil
		c.create(outbox, c.referring("orders"), consumer(c, "billing"))
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		Expect(c.get().Status.Operator).To(Equal("outbox-system"))
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		first.settle()
		generation, version, requests := c.deployment().Generation, c.get().ResourceVersion, len(first.requests.all())

		second := c.operates("team-a", "outbox-operator:v2")
		c.expectEvent(corev1.EventTypeWarning, api.ReasonManagedByAnotherOperator, `The operator of namespace "outbox-system" manages this object`)
		first.passes(10)
		Expect([]any{c.deployment().Generation, c.get().ResourceVersion}).To(Equal([]any{generation, version}))
		Expect(second.changes()).To(BeEmpty())
		Expect(first.requests.all()[requests:]).To(BeEmpty())

		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		Expect(c.deployment().Generation).To(Equal(generation + 1))
		Expect(second.changes()).To(BeEmpty())

		By("the first starts again under its name, and holds what it held")
		first.stop()
		first = c.operates("outbox-system", "outbox-operator:v1")
		edit(c, c.get(), replicas(2))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(2))
		Expect(second.changes()).To(BeEmpty())

		By("the first goes, and its object is handed over")
		first.stop()
		handOver := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"operator":null}}`))
		for _, o := range []client.Object{c.get(), fetch(c, &api.Outbox{}, "shop"), fetch(c, &api.OutboxConsumer{}, "billing")} {
			Expect(c.admin.Status().Patch(c.ctx, o, handOver)).To(Succeed())
		}
		Eventually(c.image1).Should(Equal("outbox-operator:v2"))
		Expect(c.get().Status.Operator).To(Equal("team-a"))
		first = c.operates("outbox-system", "outbox-operator:v1")
		second.passes(10)
		Expect(first.changes()).To(BeEmpty())
		Expect(c.image1()).To(Equal("outbox-operator:v2"))
		Expect(append(first.requests.forbidden(), second.requests.forbidden()...)).To(BeEmpty())
	})

	// An operator waits for the migration of its own image, which the other one does not run. CONTRACT: C-104, C-106
	It("say of a dispatcher that the other has its Outbox", Label("outbox"), func() {
		c := start(tick)
		c.stop()
		other := c.operates("team-a", "outbox-operator:v2")
		outbox := c.outbox()
		c.create(outbox)
		first := c.job().Name
		c.succeed()
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		other.stop()

		c.operates("outbox-system", "outbox-operator:v1")
		c.create(c.referring("orders"))
		c.expect(kstatus.InProgressStatus,
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonManagedByAnotherOperator, `The operator of namespace "team-a" manages Outbox "shop", and that of namespace "outbox-system" this dispatcher`},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonManagedByAnotherOperator, "Hand one of the two over"})
		Expect(c.admin.Status().Patch(c.ctx, outbox, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"operator":null}}`)))).To(Succeed())
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(first))
		c.succeed()
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
	})

	It("that see a new object at once become one holder of it", func() {
		c := start(tick)
		c.stop()
		for _, name := range []string{"outbox-system", "team-a"} {
			c.operates(name, "outbox-operator:"+name)
		}
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		c.passes(10)
		Expect(c.deployment().Generation).To(BeEquivalentTo(1))
		Expect(c.image1()).To(Equal("outbox-operator:" + c.get().Status.Operator))
	})
})
