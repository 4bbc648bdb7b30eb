package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("a failed migration", Label("migration"), func() {
	// A failed migration is tried again by itself, and at once when the spec names another login.
	It("is tried again at once when the spec names another login, and removes nothing", func() {
		c := start(tick)
		obd := c.migrated()
		login := func(name string) {
			edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Database.MigrationSecretRef.Name = name })
		}
		later := time.Now().Add(time.Hour) // it does not come to the next try by itself
		c.create(obd)
		c.finish(c.job(), later, "{\"time\":\"...\"}\nthe login owner was refused; correct the password")
		c.expect(kstatus.InProgressStatus,
			want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "The migration failed: the login owner was refused; correct the password. It is tried again"},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, ""},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonMigrationFailed, "correct the password")
		first := c.job().Name

		login("right-owner")
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(first), "another login, another Job, and the old one is gone")
		c.finish(c.job(), time.Now(), "")
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})

		// A later migration that fails removes nothing, and delays no rollout.
		second := c.job().Name
		login("wrong-owner")
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(second))
		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		c.finish(c.job(), later, "wrong again")
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, "wrong again"})
		Eventually(func() string { return c.configFile() }).Should(ContainSubstring("batchSize: 7"))
		old := c.healthy()
		old.Schema = status.Schema{State: "TooOld", Message: "version 1 of 2"}
		c.pods.says("pod-0", old)
		c.expect(kstatus.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "wrong again"})
	})

	// The database was down during the migration: no person has to act.
	It("is tried again by itself", func() {
		c := start(tick)
		c.create(c.migrated())
		first := c.job()
		c.finish(first, time.Now().Add(-time.Minute), "connection refused") // the delay is over
		Eventually(func() int { return len(c.jobs()) }).Should(Equal(2))
		c.expect(kstatus.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "connection refused"})
		for _, job := range c.jobs() {
			if job.Name != first.Name {
				Expect(job.Annotations).To(HaveKeyWithValue("outbox.dev/attempt", "2"))
				c.finish(&job, time.Now(), "")
			}
		}
		Eventually(func() int { return len(c.jobs()) }).Should(Equal(1), "the failed one is gone")
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})
