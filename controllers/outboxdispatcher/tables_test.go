package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// migrationFiles are the names of the ConfigMaps of a dispatcher's migration Job.
func (c *cluster) migrationFiles(obd *api.OutboxDispatcher) (names []string) {
	GinkgoHelper()
	var all corev1.ConfigMapList
	Expect(c.admin.List(c.ctx, &all, client.InNamespace(c.namespace), client.MatchingLabels(desired.Selector(obd, desired.ComponentMigration)))).To(Succeed())
	for _, m := range all.Items {
		names = append(names, m.Name)
	}
	return names
}

var _ = Describe("a database that several specs name", Label("sharing"), func() {
	// CONTRACT: C-104
	It("has the files of one migration", Label("migration"), func() {
		c := start(rare) // nothing but watches can notice it
		orders, younger := c.sharing("orders", "orders"), c.sharing("returns", "returns")
		c.create(orders)
		job := c.job()
		Expect(c.migrationFiles(orders)).To(HaveLen(1))
		c.create(younger)
		c.expectOf(younger, kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "OutboxDispatcher orders"})
		c.finish(job, time.Now(), "")
		Eventually(c.deployments).Should(ConsistOf("orders-dispatcher", "returns-dispatcher"))
		Expect(c.migrationFiles(younger)).To(BeEmpty())

		Expect(c.admin.Delete(c.ctx, orders)).To(Succeed())
		Eventually(func() []string { return c.migrationFiles(younger) }).Should(HaveLen(1), "who is the oldest then migrates")
	})

	// CONTRACT: C-104
	It("is migrated once, by its Outbox", Label("migration"), func() {
		c := start(rare)
		outbox, own := c.outbox(), c.sharing("webhooks", "returns")
		c.create(outbox)
		job := c.job()
		c.create(own)
		c.expectOf(own, kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "The migration Job of Outbox shop runs."})
		Expect(c.jobs()).To(HaveLen(1))
		Expect(c.migrationFiles(own)).To(BeEmpty())
		c.finish(job, time.Now(), "")
		Eventually(c.deployments).Should(ConsistOf("webhooks-dispatcher"))

		Expect(c.admin.Delete(c.ctx, outbox)).To(Succeed())
		Eventually(c.jobs).Should(ContainElement(HaveField("OwnerReferences", ContainElement(HaveField("Name", "webhooks")))))
	})

	// Who refers to an Outbox, and who names its database itself, claim from the same tables. CONTRACT: C-104
	DescribeTable("has dispatchers that name each other for topics that both deliver:", func(change func(*api.OutboxSpec)) {
		c := start(rare)
		outbox, own := c.outbox(), c.sharing("webhooks", "orders")
		change(&outbox.Spec.OutboxSpec)
		change(own.Spec.Database)
		own.Spec.Database.Migration.User = "another" // so that they have nothing else in common
		elsewhere := own.DeepCopy()
		elsewhere.Name, elsewhere.Spec.Database.Schema = "elsewhere", "other"
		referring := c.referring("orders", "orders")
		alone := want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""}
		shared := func(other string) want {
			return want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "` + other + `" delivers topics of this one too`}
		}
		c.create(outbox, own, elsewhere)
		c.expectOf(own, kstatus.InProgressStatus, alone)
		c.create(referring)
		c.expectOf(referring, kstatus.InProgressStatus, shared("webhooks"))
		c.expectOf(own, kstatus.InProgressStatus, shared("orders"))
		c.expectOf(elsewhere, kstatus.InProgressStatus, alone)
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `"orders"`})

		edit(c, outbox, func(o *api.Outbox) { o.Spec.Schema = "third" })
		c.expectOf(own, kstatus.InProgressStatus, alone)
		c.expectOf(referring, kstatus.InProgressStatus, alone)
		edit(c, own, func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "third" })
		c.expectOf(own, kstatus.InProgressStatus, shared("orders"))
		c.expectOf(referring, kstatus.InProgressStatus, shared("webhooks"))
	},
		Entry("by the same Secret", func(*api.OutboxSpec) {}),
		Entry("by the same server", func(o *api.OutboxSpec) {
			o.Server = &api.DatabaseServer{Host: "orders-db", Database: "shop"}
			o.Secret.Keys = &api.ConnectionKeys{}
		}),
	)
})
