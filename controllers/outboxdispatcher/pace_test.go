package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("an upgrade of the operator", Label("upgrade"), func() {
	// A new image of the operator's rolls so many dispatchers at a time; one that is stuck delays no other, and what
	// changes in a spec does not wait.
	// CONTRACT: C-102
	It("rolls so many dispatchers at a time", func() {
		c := start(tick)
		names := []string{"a", "b", "c", "d"}
		made := map[string]*api.OutboxDispatcher{}
		for _, name := range names {
			obd := c.dispatcher()
			obd.Name, obd.Spec.Topics = name, []string{name}
			made[name] = obd
			c.create(obd)
		}
		// settle plays the Deployment controller for those that have the image.
		settle := func(image string, progressing corev1.ConditionStatus) (settled int) {
			var all appsv1.DeploymentList
			Expect(c.admin.List(c.ctx, &all, client.InNamespace(c.namespace))).To(Succeed())
			for _, d := range all.Items {
				if d.Spec.Template.Spec.Containers[0].Image != image || d.Status.ObservedGeneration == d.Generation {
					continue
				}
				n := int32(1)
				if progressing == corev1.ConditionFalse {
					n = 0
				}
				editStatus(c, &d, func(d *appsv1.Deployment) {
					d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: n, AvailableReplicas: n,
						Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: progressing, Reason: "NewReplicaSetAvailable"}}}
				})
				settled++
			}
			return settled
		}
		rolled := func() (names []string) {
			var all appsv1.DeploymentList
			Expect(c.admin.List(c.ctx, &all, client.InNamespace(c.namespace))).To(Succeed())
			for _, d := range all.Items {
				if d.Spec.Template.Spec.Containers[0].Image == "outbox-operator:v2" {
					names = append(names, d.Name)
				}
			}
			return names
		}
		Eventually(c.deployments).Should(HaveLen(len(names)))
		Expect(settle("outbox-operator:v1", corev1.ConditionTrue)).To(Equal(len(names)))
		c.stop()

		c.image, c.rolling = "outbox-operator:v2", 1
		c.stop = c.run(tick)
		Eventually(rolled).Should(HaveLen(1))
		var waits []string
		for _, name := range names {
			if name+"-dispatcher" != rolled()[0] {
				waits = append(waits, name)
			}
		}
		for _, name := range waits {
			c.expectOf(made[name], kstatus.InProgressStatus, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "waits for other dispatchers to take what the operator's upgrade changes"})
		}
		Expect(rolled()).To(HaveLen(1), "one at a time")

		edit(c, made[waits[0]], func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(rolled).Should(ContainElement(waits[0]+"-dispatcher"), "who changes the spec does not wait")
		Expect(rolled()).To(HaveLen(2))

		Expect(settle("outbox-operator:v2", corev1.ConditionFalse)).To(Equal(2), "stuck")
		Eventually(rolled).Should(HaveLen(3))
		Expect(settle("outbox-operator:v2", corev1.ConditionTrue)).To(Equal(1))
		Eventually(rolled).Should(HaveLen(4))
	})
})
