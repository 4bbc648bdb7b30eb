package outboxdispatcher_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// disabled lets the operator keep its hands off the object.
func disabled[T client.Object](o T) T {
	o.SetAnnotations(map[string]string{api.AnnotationReconcile: api.ReconcileDisabled})
	return o
}

var _ = Describe("an object with the annotation outbox.dev/reconcile: Disabled", Label("handsoff"), func() {
	handsOff := want{api.ReconcilingCondition, metav1.ConditionFalse, api.ReasonReconcileDisabled, "changes nothing that it has made"}

	// What a person does to the Deployment stays, and so does what was applied last. CONTRACT: C-106
	It("is left alone, while the status says what its pods report", func() {
		c := start(tick)
		obd := c.dispatcher()
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		annotate := func(value string) {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, api.AnnotationReconcile, value)
			Expect(c.admin.Patch(c.ctx, obd, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		}
		annotate(`"Disabled"`)
		c.expect(kstatus.CurrentStatus, handsOff, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.expectEvent(corev1.EventTypeNormal, api.ReasonReconcileDisabled, "Remove the annotation")

		edit(c, c.deployment(), func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(5)) })
		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.State, o.Spec.Delivery.BatchSize, o.Spec.Replicas = api.StatePaused, 7, new(int32(0))
		})
		down := c.healthy()
		down.Source = status.Link{State: status.Unreachable, Reason: "ConnectionRefused", Message: "nothing listens; start the server"}
		c.pods.says("pod-0", down)
		Eventually(func(g Gomega) {
			g.Expect(meta.FindStatusCondition(c.get().Status.Conditions, api.ReadyCondition).Reason).To(Equal(api.ReasonConnectionFailed))
		}).Should(Succeed())
		c.passes(5)
		Expect(c.get().Status.ObservedGeneration).To(BeNumerically("<", c.get().Generation), "tools see that an edit waits")
		Expect(*c.deployment().Spec.Replicas).To(BeEquivalentTo(5))
		Expect(c.state()).To(Equal("Running"))
		Expect(c.configFile()).NotTo(ContainSubstring("batchSize"))

		annotate("null")
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		Eventually(c.state).Should(Equal("Paused"))
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.ReconcilingCondition)
		}).
			ShouldNot(HaveField("Status", metav1.ConditionFalse))
	})

	It("makes nothing, of any kind", func() {
		c := start(tick)
		outbox := c.outbox()
		outbox.Spec.ReplayLogin = &api.ReplayLogin{SecretRef: &api.SecretRef{Name: "replay"}}
		replay := &api.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: c.namespace}, Spec: api.DeadLetterReplaySpec{
			OutboxRef: &api.OutboxRef{Name: "shop"}, Namespace: "shop", Action: api.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
			Selector: api.DeadLetterSelector{Group: "7f3a9c21"}}}
		all := []client.Object{disabled(c.migrated()), disabled(outbox), disabled(replay), disabled(consumer(c, "billing"))}
		c.create(all...)
		for _, o := range all {
			Eventually(func(g Gomega) {
				g.Expect(c.admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
				g.Expect(conditionsOf(o)).To(ContainElement(And(HaveField("Type", api.ReconcilingCondition), HaveField("Status", metav1.ConditionFalse))), "%T", o)
			}).Should(Succeed())
		}
		Expect(c.changes()).To(HaveEach(HaveSuffix("/status")))
		edit(c, replay, func(o *api.DeadLetterReplay) { o.Annotations = nil })
		edit(c, outbox, func(o *api.Outbox) { o.Annotations = map[string]string{api.AnnotationReconcile: "disabled"} }) // as Flux writes it
		Eventually(c.jobs).Should(HaveLen(1))
		edit(c, outbox, func(o *api.Outbox) { o.Annotations = nil })
		Eventually(c.jobs).Should(HaveLen(2))
		Expect(c.jobs()).To(HaveEach(HaveField("Name", Or(HavePrefix("chg-812"), HavePrefix("shop")))))
		Expect(strings.Join(c.requests.forbidden(), "\n")).To(BeEmpty())
	})
})

// consumer is a plain OutboxConsumer.
func consumer(c *cluster, name string) *api.OutboxConsumer {
	return &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, Spec: api.OutboxConsumerSpec{
		EventTypes: []string{"order.*"}, OwnerTeam: "billing", IdempotencyMechanism: api.IdempotencyUniqueKey}}
}

func conditionsOf(o client.Object) []metav1.Condition {
	switch o := o.(type) {
	case *api.Outbox:
		return o.Status.Conditions
	case *api.DeadLetterReplay:
		return o.Status.Conditions
	case *api.OutboxConsumer:
		return o.Status.Conditions
	}
	return o.(*api.OutboxDispatcher).Status.Conditions
}
