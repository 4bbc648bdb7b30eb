package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("a database that two dispatchers name themselves", Label("sharing"), func() {
	// The migration takes a lock in the database, so that two Jobs run one after the other. CONTRACT: C-104
	It("has a migration Job of each", Label("migration"), func() {
		c := start(rare) // nothing but watches can notice it
		orders, returns := c.sharing("orders", "orders"), c.sharing("returns", "returns")
		c.create(orders, returns)
		Eventually(c.jobs).Should(ConsistOf(ownedBy("orders"), ownedBy("returns")))
		for _, job := range c.jobs() {
			if metav1.GetControllerOf(&job).Name == "returns" {
				c.finish(&job, time.Now(), "")
			}
		}
		Eventually(c.deployments).Should(ConsistOf("returns-dispatcher"), "neither waits for the other's")
	})

	// CONTRACT: C-104
	It("has dispatchers that name each other for topics that both deliver", func() {
		c := start(rare)
		own, other := c.sharing("webhooks", "orders"), c.sharing("orders", "orders")
		elsewhere := c.sharing("elsewhere", "orders")
		elsewhere.Spec.Database.Schema = "other"
		alone := want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""}
		shared := func(other string) want {
			return want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "` + other + `" delivers topics of this one too`}
		}
		c.create(own, elsewhere)
		c.expectOf(own, kstatus.InProgressStatus, alone)
		c.create(other)
		c.expectOf(other, kstatus.InProgressStatus, shared("webhooks"))
		c.expectOf(own, kstatus.InProgressStatus, shared("orders"))
		c.expectOf(elsewhere, kstatus.InProgressStatus, alone)

		edit(c, own, func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "third" })
		c.expectOf(own, kstatus.InProgressStatus, alone)
		c.expectOf(other, kstatus.InProgressStatus, alone)
		edit(c, other, func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "third" })
		c.expectOf(own, kstatus.InProgressStatus, shared("orders"))
		c.expectOf(other, kstatus.InProgressStatus, shared("webhooks"))
	})
})

// ownedBy matches a Job of the dispatcher.
func ownedBy(name string) OmegaMatcher {
	return WithTransform(func(job batchv1.Job) string { return metav1.GetControllerOf(&job).Name }, Equal(name))
}
