package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

// CONTRACT: C-82
var _ = Describe("a dispatcher that requires verified consumers", Label("consumer"), func() {
	const name = "orders-dispatcher-consumers"

	// REQUIREMENT: RULE-010-030
	It("lists the types that have one for its pods, without new pods", func() {
		other, c := start(tick), start(tick)
		other.stop()
		c.stop()
		c.also = []string{other.namespace}
		c.run(tick)
		types := func() string { return fetch(c, &corev1.ConfigMap{}, name).Data["types"] }
		annotation := func() string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations["outbox.dev/consumers"] }
		obd := c.dispatcher()
		obd.Spec.Delivery.ConsumerPolicy = api.ConsumersVerified
		billing := &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing", Namespace: c.namespace}, Spec: api.OutboxConsumerSpec{
			EventTypes: []string{"payment.*", "order.placed"}, OwnerTeam: "team-billing", IdempotencyMechanism: api.IdempotencyUniqueKey}}
		c.create(obd, billing)
		Eventually(types).Should(BeEmpty(), "nothing is verified yet")
		Expect(c.loadConfig().VerifiedTypesFile).To(Equal("/etc/outbox/consumers/types"))
		podStatus := c.healthy()
		podStatus.Gated = []status.GatedTopic{{Topic: "orders", EventType: "order.placed", Waiting: 1, Since: time.Now()}}
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.TopicsPausedCondition, metav1.ConditionTrue, api.ReasonConsumersNotVerified, `"orders" (type "order.placed")`})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonConsumersNotVerified, "consumerPolicy")
		Eventually(annotation).ShouldNot(BeEmpty())
		before, template := annotation(), c.deployment().Spec.Template.String()
		verify := func(c *cluster, o *api.OutboxConsumer, at time.Time) {
			edit(c, o, func(o *api.OutboxConsumer) {
				o.Spec.Evidence = &api.ConsumerEvidence{VerifiedAt: metav1.NewTime(at), EventType: "order.placed", Checks: 19, Passed: 19}
			})
		}

		stranger := &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing", Namespace: other.namespace}, Spec: api.OutboxConsumerSpec{
			EventTypes: []string{"*"}, OwnerTeam: "another", IdempotencyMechanism: api.IdempotencyUniqueKey}}
		other.create(stranger)
		verify(other, stranger, time.Now())
		Eventually(func() bool { return registration.Verified(fetch(other, stranger, "billing")) }).Should(BeTrue())

		verify(c, billing, time.Now())
		Eventually(types).Should(Equal("order.placed\npayment.*"), "consumers of other namespaces do not count")
		Eventually(annotation).ShouldNot(Equal(before))
		edit(c, fetch(c, &corev1.ConfigMap{}, name), func(m *corev1.ConfigMap) { m.Data["types"] = "*" })
		Eventually(types).Should(Equal("order.placed\npayment.*"), "it is written again")
		Expect(c.admin.Delete(c.ctx, fetch(c, &corev1.ConfigMap{}, name))).To(Succeed())
		Eventually(func() string {
			made := &corev1.ConfigMap{}
			_ = c.admin.Get(c.ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, made)
			return made.Data["types"]
		}).Should(Equal("order.placed\npayment.*"), "it is made again")
		podStatus.Gated = nil
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, want{api.TopicsPausedCondition, metav1.ConditionFalse, api.ReasonNoTopicsPaused, ""})
		c.settle()

		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.DispatcherRefs = []api.DispatcherRef{{Name: "others"}} })
		Eventually(types).Should(BeEmpty(), "it is not fed by this dispatcher")
		Eventually(annotation).Should(Equal(before))
		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.DispatcherRefs[0].Name = "orders" })
		Eventually(types).ShouldNot(BeEmpty())
		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.Evidence = nil }) // or older evidence is refused
		verify(c, billing, time.Now().Add(2*time.Second-2160*time.Hour))
		Eventually(types).Should(BeEmpty(), "the evidence gets too old by itself")
		Expect(c.deployment().Spec.Template.String()).To(Equal(template), "no pod rolls")

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.ConsumerPolicy = api.ConsumersAny })
		Eventually(func() string { return c.deployment().Spec.Template.String() }).ShouldNot(Equal(template))
		c.settle()
		fetch(c, &corev1.ConfigMap{}, name) // which the pods of before read
		c.deployed(1, 1)
		Eventually(func() bool {
			return apierrors.IsNotFound(c.admin.Get(c.ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &corev1.ConfigMap{}))
		}).Should(BeTrue(), "what no pod reads any more is deleted")
		Expect(c.requests.forbidden()).To(BeEmpty())
	})
})
