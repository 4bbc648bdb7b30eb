package outboxdispatcher_test

import (
	"encoding/json"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

var _ = Describe("a workload in trouble", Label("workload", "status"), func() {
	// All that are in the way are named at once. CONTRACT: C-101
	It("adopts no object of others", Label("security"), func() {
		c := start(tick)
		theirs := []client.Object{
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher-state", Namespace: c.namespace}, Data: map[string]string{"state": "theirs"}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher", Namespace: c.namespace,
				Labels: map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": "others", "outbox.dev/component": "dispatcher"}}},
			&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher", Namespace: c.namespace,
				Labels:          map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": "orders", "outbox.dev/component": "dispatcher"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "others", UID: "4711", Controller: new(true)}}}},
		}
		c.create(append(theirs, c.dispatcher())...)
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject,
				`ConfigMap "orders-dispatcher-state", NetworkPolicy "orders-dispatcher", ServiceAccount "orders-dispatcher" exist and do not belong to this OutboxDispatcher; delete them`},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonForeignObject, ""},
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonForeignObject, ""})
		Expect(c.state()).To(Equal("theirs"))

		Expect(c.admin.Delete(c.ctx, theirs[0])).To(Succeed())
		Expect(c.admin.Delete(c.ctx, theirs[2])).To(Succeed())
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject,
			`ServiceAccount "orders-dispatcher" exists and does not belong to this OutboxDispatcher; delete it`})
		Expect(c.admin.Delete(c.ctx, theirs[1])).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})

	// As after `kubectl delete --cascade=orphan`, when the object is created again: nothing rolls. CONTRACT: C-101
	It("adopts what was made for an object of its name and was orphaned", func() {
		c, _ := delivering(tick, migrating)
		var files corev1.ConfigMapList
		Expect(c.admin.List(c.ctx, &files, client.InNamespace(c.namespace), client.HasLabels{"outbox.dev/dispatcher"})).To(Succeed())
		made := []client.Object{c.deployment(), fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
			fetch(c, &networkingv1.NetworkPolicy{}, "orders-dispatcher"), fetch(c, pdb(c), "orders-dispatcher"), c.job()}
		for i := range files.Items {
			made = append(made, &files.Items[i])
		}
		generation := c.deployment().Generation
		c.stop()
		Expect(c.admin.Delete(c.ctx, c.get())).To(Succeed()) // there is no garbage collector
		for _, o := range made {
			edit(c, o, func(o client.Object) { o.SetOwnerReferences(nil) })
		}
		foreign := &policyv1.PodDisruptionBudget{}
		edit(c, fetch(c, foreign, "orders-dispatcher"), func(o *policyv1.PodDisruptionBudget) { o.Labels = nil })

		// A stranger's object does not keep what is ours from being stopped.
		obd := c.migrated()
		replicas(0)(obd)
		c.create(obd)
		c.run(tick)
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeZero())
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject, `PodDisruptionBudget "orders-dispatcher" exists`})
		Expect(c.admin.Delete(c.ctx, foreign)).To(Succeed())
		edit(c, obd, replicas(1))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(1))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		for _, o := range made {
			Expect(c.admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			Expect(metav1.IsControlledBy(o, obd)).To(BeTrue(), "%T", o)
		}
		Expect(c.deployment().Generation).To(Equal(generation+2), "it was scaled twice")
		Expect(c.jobs()).To(HaveLen(1), "it is migrated")
	})

	// CONTRACT: C-101
	It("is left alone when its template is invalid", func() {
		c, obd := delivering(tick)
		before := c.deployment().Generation

		template := func(raw string) {
			edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Pods.Template = json.RawMessage(raw) })
		}
		template(`{"spec":{"afinity":{}}}`)
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, "afinity"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "afinity"},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		template(`{"spec":{"containers":[{"name":"sidecar"}]}}`) // well-formed, but a container needs an image
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonApplyRefused, "spec.template.spec.containers"})
		Expect(c.deployment().Generation).To(Equal(before), "the pods that run are left alone")

		template(`{"spec":{"nodeSelector":{"disk":"fast"}}}`)
		Eventually(func() map[string]string { return c.deployment().Spec.Template.Spec.NodeSelector }).Should(HaveKeyWithValue("disk", "fast"))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
	})
})

var _ = Describe("what the spec says of pods", Label("workload"), func() {
	// Only a pod compiles what the spec says; it replaces nothing, and its words are in the condition. CONTRACT: C-72, C-101
	It("is refused by a new pod, whose words are in the condition", Label("status"), func() {
		c, obd := delivering(tick)
		before := c.deployment().Generation

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Message.Transform = []spec.Transformation{{Payload: `without(paylaod, ["card"])`}}
			o.Spec.Message.Validation = []spec.Validation{{Schema: &spec.PayloadSchema{ConfigMapRef: &spec.ConfigMapRef{Name: "schemas", Key: "order.json"}}}}
		})
		Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
		Expect(c.configFile()).To(ContainSubstring("key: order.json"))
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
		Eventually(c.configFile).ShouldNot(ContainSubstring("transform"))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())

		pod = c.pod("another", ended(desired.Container, 78, "configuration /etc/outbox/config/config.yaml: sink.kafka.brokers is missing; set it"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration, "Sink.kafka.brokers is missing; set it."})

		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())

		// The operator itself may write what the pods' image does not know.
		pod = c.pod("older", ended(desired.Container, 78, "line 31, column 1: unknown field \"spec.delivery.pace\"; correct its name, or remove it"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration,
			"The image of the dispatcher does not know spec.delivery.pace, which this operator writes: it is older; give"})
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.pod("older-too", ended(desired.Container, 78, "line 3, column 1: unknown field \"spec.notify\"; did you mean notes?"))
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidConfiguration, "The image of the dispatcher does not know spec.notify, which"})
	})

	// CONTRACT: C-105
	It("that is too large says so, leaves the pods as they are, and can be stopped", func() {
		c, obd := delivering(tick)
		template := c.deployment().Spec.Template.String()
		edit(c, obd, func(o *api.OutboxDispatcher) {
			for range 5 {
				o.Spec.Message.Validation = append(o.Spec.Message.Validation, spec.Validation{Schema: &spec.PayloadSchema{Inline: `{"title":"` + strings.Repeat("x", 60<<10) + `"}`}})
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
		c, obd := delivering(tick, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template = json.RawMessage(`{"metadata":{"labels":{
				"app.kubernetes.io/name":"shop","app.kubernetes.io/instance":"prod","app.kubernetes.io/managed-by":"Helm"}}}`)
		})
		Expect(c.deployment().Spec.Template.Labels).To(HaveKeyWithValue("app.kubernetes.io/managed-by", "Helm"))
		before := c.settle()
		c.passes(5)
		Expect(c.Requests.All()[before:]).To(BeEmpty())

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template = json.RawMessage(`{"metadata":{"labels":{"outbox.dev/managed-by":"Helm","outbox.dev/component":"x","outbox.dev/dispatcher":"y"}}}`)
		})
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate,
			"(outbox.dev/component, outbox.dev/dispatcher, outbox.dev/managed-by); leave them out of it"})
		c.settle()
		before = len(c.Requests.Writes(""))
		c.passes(10)
		Expect(c.Requests.Writes("")[before:]).To(BeEmpty(), "the message stays the same")
	})
})

// ended is the status of a pod whose container ended so, and is to be started again.
func ended(container string, code int32, words string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container, Image: "outbox-operator:v1", RestartCount: 2,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: words}}}}}
}

// CONTRACT: C-82
var _ = Describe("a dispatcher that requires verified consumers", Label("consumer"), func() {
	const name = "orders-dispatcher-consumers"

	// REQUIREMENT: RULE-010-030
	It("lists the types that have one for its pods, without new pods", func() {
		other := start(tick)
		other.stop()
		c := start(tick, func(c *cluster) { c.also = []string{other.namespace} })
		types := func() string { return fetch(c, &corev1.ConfigMap{}, name).Data["types"] }
		annotation := func() string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations["outbox.dev/consumers"] }
		obd := c.dispatcher()
		obd.Spec.Delivery.ConsumerPolicy = spec.ConsumersVerified
		billing := &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing", Namespace: c.namespace}, Spec: api.OutboxConsumerSpec{
			EventTypes: []string{"payment.*", "order.placed"}, OwnerTeam: "team-billing", IdempotencyMechanism: api.IdempotencyUniqueKey}}
		c.create(obd, billing)
		Eventually(types).Should(BeEmpty(), "nothing is verified yet")
		Expect(c.command()).To(ContainElements("--verified-types-file", "/etc/outbox/consumers/types"))
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
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, want{api.TopicsPausedCondition, metav1.ConditionFalse, api.ReasonNoTopicsPaused, ""})
		c.settle()

		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.DispatcherRefs = []spec.DispatcherRef{{Name: "others"}} })
		Eventually(types).Should(BeEmpty(), "it is not fed by this dispatcher")
		Eventually(annotation).Should(Equal(before))
		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.DispatcherRefs[0].Name = "orders" })
		Eventually(types).ShouldNot(BeEmpty())
		edit(c, billing, func(o *api.OutboxConsumer) { o.Spec.Evidence = nil }) // or older evidence is refused
		verify(c, billing, time.Now().Add(2*time.Second-2160*time.Hour))
		Eventually(types).Should(BeEmpty(), "the evidence gets too old by itself")
		Expect(c.deployment().Spec.Template.String()).To(Equal(template), "no pod rolls")

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.ConsumerPolicy = spec.ConsumersAny })
		Eventually(func() string { return c.deployment().Spec.Template.String() }).ShouldNot(Equal(template))
		c.settle()
		fetch(c, &corev1.ConfigMap{}, name) // which the pods of before read
		c.deployed(1, 1)
		Eventually(func() bool {
			return apierrors.IsNotFound(c.admin.Get(c.ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &corev1.ConfigMap{}))
		}).Should(BeTrue(), "what no pod reads any more is deleted")
	})
})

var _ = Describe("the status", Label("status"), func() {
	// A namespace that is being deleted takes no events any more: none is sent, and none is complained
	// about. (There is no namespace controller here, so it stays as it is.)
	It("sends no Event to a namespace that is being deleted", func() {
		c, _ := delivering(tick)
		for _, reason := range []string{api.ReasonProgressing, api.ReasonAvailable, api.ReasonDelivering} {
			c.expectEvent(corev1.EventTypeNormal, reason, "") // so that none is under way any more
		}
		Expect(c.admin.Delete(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}})).To(Succeed())
		podStatus := c.healthy()
		podStatus.Source = status.Link{State: status.Unreachable, Reason: api.ReasonAuthenticationFailed, Message: "correct the password"}
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonAuthenticationFailed, ""})
		c.passes(3)
	})
})
