package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("dispatchers of one database", Label("sharing"), func() {
	// The migration takes a lock in the database, so two Jobs run one after the other. CONTRACT: C-104
	It("have a migration Job each, without an Outbox", Label("migration"), func() {
		c := start(rare) // nothing but watches can notice it
		c.create(c.sharing("orders", "orders"), c.sharing("returns", "returns"))
		of := func(job batchv1.Job) string { return metav1.GetControllerOf(&job).Name }
		Eventually(c.jobs).Should(ConsistOf(WithTransform(of, Equal("orders")), WithTransform(of, Equal("returns"))))
		for _, job := range c.jobs() {
			if of(job) == "returns" {
				c.finish(&job, time.Now(), "")
			}
		}
		Eventually(c.deployments).Should(ConsistOf("returns-dispatcher"), "neither waits for the other's")
	})

	// CONTRACT: C-104
	DescribeTable("name each other for topics that both deliver", func(made func(*cluster) (a, b *api.OutboxDispatcher)) {
		c := start(rare) // nothing but watches can notice it
		outbox := c.outbox()
		a, b := made(c)
		elsewhere := b.DeepCopy()
		elsewhere.Name, elsewhere.Spec.Namespace = "elsewhere", "another"
		c.create(outbox, a, elsewhere)
		alone := want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""}
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.create(b)
		c.expectOf(a, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "webhooks" delivers topics of this one too`})
		c.expectOf(b, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "orders" delivers topics of this one too`})
		c.expectOf(elsewhere, kstatus.InProgressStatus, alone)
		c.expectEvent(corev1.EventTypeWarning, api.ReasonTopicsShared, "Give each topics of its own")
		if a.Spec.OutboxRef != nil {
			c.expectOf(outbox, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `"orders", "webhooks"`})
		}
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Topics = []string{"others"} })
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.expectOf(b, kstatus.InProgressStatus, alone)
		c.expectEvent(corev1.EventTypeNormal, api.ReasonNotShared, "")
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Topics = nil })
		shared := want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, ""}
		c.expectOf(a, kstatus.InProgressStatus, shared)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused }) // a standby claims nothing
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.expectOf(b, kstatus.InProgressStatus, alone)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.State, o.Spec.Replicas = "", ptr.To(int32(0)) })
		c.expectOf(a, kstatus.InProgressStatus, alone)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Replicas = nil })
		c.expectOf(a, kstatus.InProgressStatus, shared)

		// Events flow all the same.
		for _, job := range c.jobs() {
			c.finish(&job, time.Now(), "")
		}
		c.rollOut(c.healthy())
		c.expectOf(a, kstatus.CurrentStatus,
			want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, ""},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(c.admin.Delete(c.ctx, b)).To(Succeed())
		c.expectOf(a, kstatus.CurrentStatus, alone)
	},
		Entry("of an Outbox", func(c *cluster) (a, b *api.OutboxDispatcher) {
			return c.referring("orders", "orders", "returns"), c.referring("webhooks", "returns")
		}),
		Entry("of one database", func(c *cluster) (a, b *api.OutboxDispatcher) {
			return c.sharing("orders", "orders"), c.sharing("webhooks")
		}),
	)

	// Dispatchers elsewhere that claim the same topics are known from the database, as pods report.
	// CONTRACT: C-104
	It("name those elsewhere, which pods know from the database", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
		podStatus := c.healthy()
		podStatus.Sharing = []string{c.namespace + "/webhooks", "other/orders"}
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus,
			want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatchers "other/orders", "webhooks" deliver topics of this one too`},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.pods.says("pod-0", c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
	})
})
