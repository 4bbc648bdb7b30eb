package outboxdispatcher_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

var _ = Describe("what the spec says of pods", Label("workload"), func() {
	// Only a pod compiles what the spec says; it replaces nothing, and its words are in the condition. CONTRACT: C-72, C-101
	It("is refused by a new pod, whose words are in the condition", Label("status"), func() {
		c := start(tick)
		obd := c.dispatcher()
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		before := c.deployment().Generation

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Message.Transform = []api.Transformation{{Payload: `without(paylaod, ["card"])`}}
			o.Spec.Message.Validation = []api.Validation{{Schema: &api.PayloadSchema{ConfigMapRef: &api.ConfigMapRef{Name: "schemas", Key: "order.json"}}}}
		})
		Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
		Expect(c.loadConfig().Message.Validation[0].Schema.File).To(Equal("/etc/outbox/schemas/0.json"))
		pod := c.pod("new", ended(desired.Container, 78,
			"message.validation[0].schema.file: it is not a JSON Schema: x\nmessage.transform[0].payload: line 1, column 9: undeclared reference to 'paylaod'"))
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline,
				"spec.message.validation[0].schema.configMapRef: it is not a JSON Schema: x; spec.message.transform[0].payload: line 1, column 9: undeclared reference to 'paylaod'. Pods from before are left as they are."},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "'paylaod'"},
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidPipeline, ""},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonInvalidPipeline, "'paylaod'")

		// The words of a pod are about its own configuration.
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Message.Transform, o.Spec.Message.Validation = nil, nil })
		Eventually(func() int { return len(c.loadConfig().Message.Transform) }).Should(BeZero())
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())

		pod = c.pod("another", ended(desired.Container, 78, "configuration /etc/outbox/config/config.yaml: sink.kafka.brokers is missing; set it"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration, "Sink.kafka.brokers is missing; set it."})

		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())

		// The operator itself may write what the pods' image does not know.
		pod = c.pod("older", ended(desired.Container, 78, "configuration /etc/outbox/config/config.yaml: line 31, column 1: verifiedTypesFile is not a field; correct its name, or remove it"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration,
			"The image of the dispatcher does not know verifiedTypesFile, which this operator writes: it is older; give"})
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.pod("older-too", ended(desired.Container, 78, "configuration /etc/outbox/config/config.yaml: line 3, column 1: notify is not a field; did you mean notes?"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration, "The image of the dispatcher does not know notify, which"})
		Expect(c.requests.forbidden()).To(BeEmpty())
	})

	// CONTRACT: C-105
	It("that is too large says so, leaves the pods as they are, and can be stopped", func() {
		c := start(tick)
		obd := c.dispatcher()
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		template := c.deployment().Spec.Template.String()
		edit(c, obd, func(o *api.OutboxDispatcher) {
			for range 5 {
				o.Spec.Message.Validation = append(o.Spec.Message.Validation, api.Validation{Schema: &api.PayloadSchema{Inline: `{"title":"` + strings.Repeat("x", 60<<10) + `"}`}})
			}
		})
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration, "and 262144 are the most; put schemas into ConfigMaps"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, ""})
		Expect(c.deployment().Spec.Template.String()).To(Equal(template))
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](0) })
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeZero())
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Message.Validation, o.Spec.Replicas = nil, ptr.To[int32](1) })
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(1))
	})

	// The labels of a chart are welcome, and cost no write. CONTRACT: C-100
	It("may have the labels of a chart", func() {
		c := start(tick)
		obd := c.dispatcher()
		obd.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{
			"app.kubernetes.io/name":"shop","app.kubernetes.io/instance":"prod","app.kubernetes.io/managed-by":"Helm"}}}`)}
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		Expect(c.deployment().Spec.Template.Labels).To(HaveKeyWithValue("app.kubernetes.io/managed-by", "Helm"))
		before := c.settle()
		c.passes(5)
		Expect(c.requests.all()[before:]).To(BeEmpty())

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template.Raw = []byte(`{"metadata":{"labels":{"outbox.dev/managed-by":"Helm","outbox.dev/component":"x","outbox.dev/dispatcher":"y"}}}`)
		})
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate,
			"(outbox.dev/component, outbox.dev/dispatcher, outbox.dev/managed-by); leave them out of it"})
		c.settle()
		before = len(c.requests.writes())
		c.passes(10)
		Expect(c.requests.writes()[before:]).To(BeEmpty(), "the message stays the same")
	})
})

// ended is the status of a pod whose container ended so, and is to be started again.
func ended(container string, code int32, words string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container, Image: "outbox-operator:v1", RestartCount: 2,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: words}}}}}
}
