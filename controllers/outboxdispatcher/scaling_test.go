package outboxdispatcher_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/outboxdispatcher"
)

var _ = Describe("the number of pods", Label("scaling"), func() {
	var c *cluster
	var at time.Time
	scaled := func(mode spec.ScalingMode) *api.OutboxDispatcher {
		c, at = start(tick), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		obd := c.dispatcher()
		obd.Spec.Pods.Scaling = &spec.Scaling{Mode: mode, Max: 8}
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ScalingLimitedCondition, metav1.ConditionUnknown, api.ReasonNotObserved, ""})
		return obd
	}
	// load lets so many pods report for that many times ten seconds.
	load := func(times, pods int, pending, each int64, perPod float64, limit string) {
		GinkgoHelper()
		for i := range times {
			at = at.Add(10 * time.Second)
			c.skew.Add(int64(10 * time.Second))
			for n := range pods {
				s := c.healthy()
				s.Backlog.ObservedAt, s.Backlog.Pending = at, pending+each*int64(i)
				s.DeliveredPerSecond, s.LimitedBy = perPod, limit
				c.Pods.Says(fmt.Sprintf("pod-%d", n), s)
			}
			c.passes(int64(2 * pods))
			Eventually(func() bool { return c.get().Status.Counts != nil && c.get().Status.Pending == pending+each*int64(i) }).Should(BeTrue())
		}
	}
	replicasOf := func() int32 { return *c.deployment().Spec.Replicas }

	// CONTRACT: C-107
	It("follows the backlog with mode Apply, and spec.replicas stays", func() {
		obd := scaled(spec.ScalingApply)
		generation := c.get().Generation
		load(4, 1, 3000, 4000, 100, "Concurrency")
		Eventually(replicasOf).Should(BeEquivalentTo(5))
		c.deployed(5, 1)
		c.expectEvent(corev1.EventTypeNormal, api.ReasonScaled, "from 1 to 5. Due now are")
		c.settle()
		GinkgoWriter.Printf("writes: %s", strings.Join(c.Requests.Writes(""), "\n"))
		c.expect(kstatus.CurrentStatus, want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, "those of the last step of spec.pods.scaling are starting"})
		template := c.deployment().Spec.Template.String()
		writes := len(c.Requests.Writes(""))
		s := c.get().Status
		Expect([]any{s.Scaling.Recommended, s.Scaling.Reason, s.Scaling.PerPod, s.ETA, s.LimitedBy}).To(Equal([]any{int32(5), "Waiting", "100", "never", "Concurrency"}))
		Expect([]int32{s.Scaling.LastStep.From, s.Scaling.LastStep.To}).To(Equal([]int32{1, 5}))

		healthy := c.healthy()
		healthy.Backlog.ObservedAt, healthy.Backlog.Pending, healthy.DeliveredPerSecond, healthy.LimitedBy = at, 15000, 100, "Concurrency"
		c.rollOut(healthy, healthy, healthy, healthy, healthy)
		load(2, 5, 14000, -4000, 100, "Concurrency")
		c.expect(kstatus.CurrentStatus, want{api.ScalingLimitedCondition, metav1.ConditionFalse, api.ReasonNotLimited, ""})
		Eventually(func() string { return c.get().Status.ETA }).Should(Equal("1m"))
		load(2, 5, 6000, -4000, 100, "Concurrency")
		Eventually(func() string { return c.get().Status.ETA }).Should(BeEmpty(), "what is delivered within seconds does not wait")
		Expect(c.deployment().Spec.Template.String()).To(Equal(template), "a step rolls no pod")
		Expect(c.events(api.ReasonRolledOut)).To(BeEmpty())
		for _, write := range c.Requests.Writes("")[writes:] {
			Expect(write).To(HaveSuffix("/outboxdispatchers/orders/status"), "a step that was made is not made again")
		}

		// The load is gone: down slowly, one pod at a time.
		load(2, 5, 0, 0, 10, "Idle")
		c.settle()
		writes = len(c.Requests.Writes(""))
		c.passes(5)
		Expect(c.Requests.Writes("")[writes:]).To(BeEmpty(), "nothing changes")
		Expect(replicasOf()).To(BeEquivalentTo(5))
		load(31, 5, 0, 0, 10, "Idle")
		Eventually(replicasOf).Should(BeEquivalentTo(4))
		load(2, 5, 0, 0, 10, "Idle")
		Expect(replicasOf()).To(BeEquivalentTo(4), "not two in a minute")
		Expect(c.get().Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
		Expect(c.get().Generation).To(Equal(generation), "the spec is the user's")

		// A manager that has just started changes nothing. CONTRACT: C-105
		c.stop()
		c.run(tick)
		c.settle()
		Expect(replicasOf()).To(BeEquivalentTo(4))
		now := c.get().Status.Scaling
		Expect([]any{now.Recommended, now.PerPod, now.LastStep.To}).To(Equal([]any{int32(4), "100", int32(4)}), "it has learned from the status")

		edit(c, obd, replicas(0))
		Eventually(replicasOf).Should(BeEquivalentTo(0))
		edit(c, obd, replicas(3))
		Eventually(replicasOf).Should(BeEquivalentTo(4), "the recommended number, and not that of the spec")
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Pods.Scaling = nil })
		Eventually(replicasOf).Should(BeEquivalentTo(3))
		Eventually(func() *api.ScalingStatus { return c.get().Status.Scaling }).Should(BeNil())
		Expect(meta.FindStatusCondition(c.get().Status.Conditions, api.ScalingLimitedCondition)).To(BeNil())
	})

	// CONTRACT: C-107
	It("stays while something else limits the pods", func() {
		obd := scaled(spec.ScalingApply)
		load(4, 1, 3000, 4000, 100, "Destination")
		Expect(c.get().Status.ETA).To(Equal("never"))
		c.expect(kstatus.CurrentStatus, want{api.ScalingLimitedCondition, metav1.ConditionTrue, api.ReasonLimitedByDestination, "more pods would deliver no more"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(replicasOf()).To(BeEquivalentTo(1))
		c.expectEvent(corev1.EventTypeWarning, api.ReasonLimitedByDestination, "Raise what it takes")
		edit(c, obd, replicas(0))
		Eventually(func() string { return c.get().Status.ETA }).Should(BeEmpty(), "without pods there is no pace")
	})

	// CONTRACT: C-107
	It("is recommended alone with mode Recommend, for whoever sets spec.replicas", func() {
		obd := scaled(spec.ScalingRecommend)
		c.settle()
		writes := len(c.Requests.Writes(""))
		load(4, 1, 3000, 4000, 100, "Concurrency")
		Eventually(func() int32 { return c.get().Status.Scaling.Recommended }).Should(BeEquivalentTo(5))
		Expect(replicasOf()).To(BeEquivalentTo(1))
		Expect(recommended(c.namespace)).To(Equal(5.0))
		for _, write := range c.Requests.Writes("")[writes:] {
			Expect(write).NotTo(ContainSubstring("deployments"), strings.Join(c.Requests.Writes("")[writes:], "\n"))
		}

		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 5}} // as an HPA does
		Expect(c.admin.SubResource("scale").Update(c.ctx, obd, client.WithSubResourceBody(scale), client.FieldOwner("kube-controller-manager"))).To(Succeed())
		Eventually(replicasOf).Should(BeEquivalentTo(5))
		Consistently(func() string { return c.get().Status.Conditions[0].Reason }, "200ms").ShouldNot(Equal(api.ReasonReplicasNotUsed))

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Pods.Scaling.Mode = spec.ScalingApply })
		Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(ContainElement(And(
			HaveField("Type", api.ScalingLimitedCondition), HaveField("Message", ContainSubstring(`"kube-controller-manager" sets spec.replicas`)))))
		Expect(c.admin.Delete(c.ctx, obd)).To(Succeed())
		Eventually(func() float64 { return recommended(c.namespace) }).Should(BeZero())
	})
})

// recommended is the metric's value, 0 for none.
func recommended(namespace string) float64 {
	families, err := metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != outboxdispatcher.ReplicasMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["namespace"] == namespace && labels["name"] == "orders" {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
