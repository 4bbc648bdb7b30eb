package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("the status", Label("status"), func() {
	// CONTRACT: C-50
	It("counts blocked keys when the dead block", func() {
		c := start(tick)
		obd := c.dispatcher()
		obd.Spec.Delivery.Ordering = api.OrderingKey
		c.create(obd)
		podStatus := c.healthy()
		podStatus.Backlog.Dead, podStatus.Backlog.BlockedKeys = 1, 3
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus)
		Expect(c.get().Status.BlockedKeys).To(BeNil(), "onDead is Continue")

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.OnDead = api.OnDeadBlock })
		Eventually(func() string { return c.configFile() }).Should(ContainSubstring("onDead: Block"))
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus,
			want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "Later events of their keys wait behind them"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(c.get().Status.BlockedKeys).To(HaveValue(BeEquivalentTo(3)))
	})

	It("reports what holds back vacuum", func() {
		c := start(tick)
		c.create(c.dispatcher())
		podStatus := c.healthy()
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.VacuumHeldBackCondition, metav1.ConditionFalse, api.ReasonNotHeldBack, ""})

		podStatus.OldestTransaction = &status.OldestTransaction{Kind: status.Session, Name: "pid 4711 (psql)", Seconds: 3600}
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, // events are delivered all the same
			want{api.VacuumHeldBackCondition, metav1.ConditionTrue, api.ReasonOldTransaction, "pg_terminate_backend(4711)"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonOldTransaction, "pg_terminate_backend(4711)")

		c.settle()
		before := c.get().ResourceVersion
		podStatus.OldestTransaction.Seconds = 7200
		c.pods.says("pod-0", podStatus)
		c.passes(3)
		Expect(c.get().ResourceVersion).To(Equal(before), "its age alone does not count as a change")
		c.pods.says("pod-0", c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.VacuumHeldBackCondition, metav1.ConditionFalse, api.ReasonNotHeldBack, ""})
		c.expectEvent(corev1.EventTypeNormal, api.ReasonNotHeldBack, "")
	})

	// A namespace that is being deleted takes no events any more: none is sent, and none is complained
	// about. (There is no namespace controller here, so it stays as it is.)
	It("sends no Event to a namespace that is being deleted", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		for _, reason := range []string{api.ReasonProgressing, api.ReasonAvailable, api.ReasonDelivering} {
			c.expectEvent(corev1.EventTypeNormal, reason, "") // so that none is under way any more
		}
		Expect(c.admin.Delete(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}})).To(Succeed())
		podStatus := c.healthy()
		podStatus.Source = status.Link{State: status.Unreachable, Reason: api.ReasonAuthenticationFailed, Message: "correct the password"}
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonAuthenticationFailed, ""})
		c.passes(3)
		Expect(c.requests.forbidden()).To(BeEmpty())
	})
})
