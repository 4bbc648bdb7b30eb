package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("a missing reference", Label("references"), func() {
	// What is missing is reported in the kubelet's words, until it exists. CONTRACT: C-101, C-103
	It("is reported in the words of the kubelet, until it exists", func() {
		c := start(tick)
		obd, outbox := c.referring("orders"), c.outbox()
		obd.Spec.Message.Validation = []api.Validation{{Schema: &api.PayloadSchema{ConfigMapRef: &api.ConfigMapRef{Name: "schemas", Key: "order.json"}}}}
		outbox.Spec.Migration, outbox.Spec.TLS = nil, &api.DatabaseTLS{CAConfigMapRef: &api.ConfigMapRef{Name: "roots"}}
		c.create(obd, outbox)
		pod := c.pod("pod-a", corev1.PodStatus{Phase: corev1.PodPending})
		c.deployed(1, 0)
		c.expect(kstatus.InProgressStatus, want{api.ReferencesResolvedCondition, metav1.ConditionUnknown, api.ReasonNotObserved, ""})

		for _, said := range []struct{ words, reason, message string }{
			{`MountVolume.SetUp failed for volume "secrets" : secret "orders-db" not found`, api.ReasonSecretNotFound,
				`Secret "orders-db", which Outbox shop: spec.secretRef names, does not exist in namespace`},
			{`MountVolume.SetUp failed for volume "secrets" : references non-existent secret key: dsn`, api.ReasonSecretKeyNotFound,
				`Secret "orders-db", which Outbox shop: spec.secretRef names, has no key "dsn"; add the key`},
			{`MountVolume.SetUp failed for volume "secrets" : configmap "roots" not found`, api.ReasonConfigMapNotFound,
				`ConfigMap "roots", which Outbox shop: spec.tls.caConfigMapRef names, does not exist`},
			{`MountVolume.SetUp failed for volume "secrets" : references non-existent config key: ca.crt`, api.ReasonConfigMapKeyNotFound,
				`ConfigMap "roots", which Outbox shop: spec.tls.caConfigMapRef names, has no key "ca.crt"`},
			{`MountVolume.SetUp failed for volume "schemas" : configmap "schemas" not found`, api.ReasonConfigMapNotFound,
				`ConfigMap "schemas", which spec.message.validation[0].schema.configMapRef names, does not exist`},
			{`MountVolume.SetUp failed for volume "schemas" : references non-existent config key: order.json`, api.ReasonConfigMapKeyNotFound,
				`has no key "order.json"`},
		} {
			Expect(c.admin.DeleteAllOf(c.ctx, &corev1.Event{}, client.InNamespace(c.namespace), client.MatchingFields{"reason": "FailedMount"})).To(Succeed())
			c.mountFails(pod, said.words)
			c.expect(kstatus.InProgressStatus,
				want{api.ReferencesResolvedCondition, metav1.ConditionFalse, said.reason, said.message},
				want{api.ReadyCondition, metav1.ConditionFalse, said.reason, said.message},
				want{api.ReconcilingCondition, metav1.ConditionTrue, said.reason, said.message})
		}
		c.expectEvent(corev1.EventTypeWarning, api.ReasonSecretNotFound, "create it")

		// The kubelet tries again by itself.
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
		Expect(c.requests.forbidden()).To(BeEmpty())
		for _, request := range c.requests.all() {
			Expect(request).NotTo(ContainSubstring("/secrets"))
		}
	})

	// A migration's login is missing.
	It("is reported when a migration has it", Label("migration"), func() {
		c := start(tick)
		c.create(c.migrated())
		job := c.job()
		pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = "migrate", c.namespace
		c.start(pod, corev1.PodStatus{Phase: corev1.PodPending})
		c.mountFails(pod, `MountVolume.SetUp failed for volume "secrets" : [references non-existent secret key: dsn, secret "orders-owner" not found]`)
		c.expect(kstatus.InProgressStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound,
			`Secret "orders-owner", which spec.database.migrationSecretRef names`})
	})
})
