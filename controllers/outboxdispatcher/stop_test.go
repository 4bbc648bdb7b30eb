package outboxdispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

var _ = Describe("a stop", Label("stop"), func() {
	// Whatever is wrong, scale and pause are applied. CONTRACT: C-105
	DescribeTable("is obeyed while", func(migrates bool, spoil func(*api.OutboxDispatcher), reported want) {
		c := start(tick)
		obd := c.dispatcher()
		if migrates {
			obd = c.migrated()
		}
		replicas(2)(obd)
		c.create(obd)
		if migrates {
			c.succeed()
		}
		c.rollOut(c.healthy(), c.healthy())
		c.expect(kstatus.CurrentStatus)
		before := c.deployment().Generation

		edit(c, obd, spoil)
		switch reported.Reason {
		case api.ReasonSecretNotFound:
			Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
			c.mountFails(c.pod("new", corev1.PodStatus{Phase: corev1.PodPending}), `secret "missing" not found`, 0)
		case api.ReasonInvalidPipeline:
			Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
			c.pod("new", ended(desired.Container, 78, "message.transform[0].payload: line 1, column 9: undeclared reference to 'paylaod'"))
		}
		Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(ContainElement(And(
			HaveField("Type", reported.Type), HaveField("Status", reported.Status), HaveField("Reason", reported.Reason))))

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))
		for _, pod := range []string{"pod-0", "pod-1"} {
			Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, pod).Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Paused"))
		}
		edit(c, obd, replicas(0))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
	},
		Entry("a reference is missing", false, func(o *api.OutboxDispatcher) { o.Spec.Database.SecretRef.Name = "missing" },
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""}),
		Entry("the template is invalid", false, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template = json.RawMessage(`{"spec":{"afinity":{}}}`)
		},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, ""}),
		Entry("the template is refused", false, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template = json.RawMessage(`{"spec":{"containers":[{"name":"sidecar"}]}}`)
		}, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonApplyRefused, ""}),
		Entry("the template has a name twice", false, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.Template = json.RawMessage(`{"spec":{"containers":[{"name":"dispatcher","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}}`)
		}, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonApplyRefused, ""}),
		Entry("the migration hangs", true, func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "other" },
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, ""}),
		Entry("the configuration is bad", false, func(o *api.OutboxDispatcher) {
			o.Spec.Message.Transform = []spec.Transformation{{Payload: "without(paylaod)"}}
		}, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline, ""}),
		Entry("a policy refuses to scale its Deployment", false, func(o *api.OutboxDispatcher) {
			refuseMore(o.Namespace)
			replicas(3)(o)
		}, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, ""}),
	)

	// Whoever keeps all workers busy delays no stop. CONTRACT: C-105
	DescribeTable("is obeyed while all workers are busy with", func(held string) {
		c, obd := delivering(tick, replicas(2))
		const workers = 8
		release := c.Requests.Hold(func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, held)
		})
		all := make([]*api.OutboxDispatcher, workers)
		for i := range all {
			all[i] = c.dispatcher()
			all[i].Name, all[i].Spec.Topics = fmt.Sprintf("busy-%d", i), []string{fmt.Sprint(i)}
			c.create(all[i])
		}
		Eventually(c.Requests.HeldBack).Should(Equal(workers))
		for _, busy := range all {
			edit(c, busy, replicas(2)) // which the workers for stops look at
		}

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))
		Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Paused"))
		edit(c, obd, replicas(0))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		Expect(c.Requests.HeldBack()).To(Equal(workers), "all are still busy")
		release()
	},
		Entry("others' ServiceAccounts", "/serviceaccounts/busy-"),
		Entry("others' statuses", "/outboxdispatchers/busy-"),
	)

	// Nor does a write to an object of another that hangs delay a change. CONTRACT: C-108
	It("and an edit are applied while the status of another is being written", func() {
		c, obd := delivering(tick, replicas(2))
		release := c.Requests.Hold(func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/outboxdispatchers/slow/")
		})
		slow := c.dispatcher()
		slow.Name, slow.Spec.Topics = "slow", []string{"slow"}
		c.create(slow)
		Eventually(c.Requests.HeldBack).Should(Equal(1))

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		edit(c, obd, replicas(0))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		Expect(c.Requests.HeldBack()).To(Equal(1))
		release()
	})

	// A pass over the spec from before the stop applies no Deployment of that. CONTRACT: C-105
	It("is not undone by a pass that began before it", func() {
		c, obd := delivering(tick)
		before := c.settle()
		release := c.Requests.Hold(func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/configmaps/")
		})
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(c.Requests.HeldBack).Should(Equal(1), "the pass has made its files")
		edit(c, obd, replicas(0))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		release()
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		c.settle()
		Expect(slices.DeleteFunc(c.Requests.All()[before:], func(request string) bool {
			return !strings.HasPrefix(request, http.MethodPatch) || !strings.Contains(request, "/deployments/")
		})).To(HaveLen(2), "the stop, and the Deployment of the newest spec")
	})

	// A mistake because of which delivery was paused does not continue after its correction; and what was stopped starts
	// with what the spec says then.
	It("ends when the rollout has ended", func() {
		c, obd := delivering(tick)
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State, o.Spec.Delivery.BatchSize = spec.Running, 7 })
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonResuming, "when all of them run the newest spec"})
		Expect(c.state()).To(Equal("Paused"), "the pods are of the template from before")
		c.deployed(1, 1)
		Eventually(c.state).Should(Equal("Running"))
		Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Running"))
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})

		edit(c, obd, replicas(0))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		edit(c, obd, func(o *api.OutboxDispatcher) {
			replicas(3)(o)
			o.Spec.Pods.Template = json.RawMessage(`{"spec":{"afinity":{}}}`)
		})
		Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(ContainElement(HaveField("Reason", api.ReasonInvalidPodTemplate)))
		Expect(*c.deployment().Spec.Replicas).To(BeEquivalentTo(0), "nothing starts with the template from before")
	})

	// What does not work replaces nothing that does: pods that were paused claim again, by the spec from before.
	// CONTRACT: C-105
	DescribeTable("ends within a bound, while", func(spoil func(*api.OutboxDispatcher), reason, words string) {
		c := start(tick, func(c *cluster) { c.resume = time.Second })
		obd := c.deliver()
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))
		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.State = spec.Running
			spoil(o)
		})
		Eventually(c.state).Should(Equal("Running"))
		Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Running"))
		if words != "" {
			c.jobPod(c.job(), unpulled)
			c.expectEvent(corev1.EventTypeWarning, api.ReasonPartlyAvailable, words)
		}
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, reason, words})
	},
		Entry("a rollout hangs", func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 }, api.ReasonDelivering, ""),
		Entry("its migration hangs", migrating, api.ReasonDeliveringDespiteTrouble, "cannot be pulled"),
		Entry("its Outbox is missing", func(o *api.OutboxDispatcher) {
			o.Spec.Database, o.Spec.OutboxRef = nil, &spec.OutboxRef{Name: "missing"}
		}, api.ReasonDeliveringDespiteTrouble, ""),
	)

	It("is reported while pods still deliver, and when none does", Label("status"), func() {
		c := start(tick)
		obd := c.dispatcher()
		obd.Spec.State = spec.Paused
		c.create(obd)
		podStatus := c.healthy()
		c.rollOut(podStatus)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonPausing, "within 90 seconds"})
		podStatus.State = "Paused"
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonPaused, "spec.state"})
		Expect(c.state()).To(Equal("Paused"))

		Eventually(func(g Gomega) {
			scale := &autoscalingv1.Scale{}
			g.Expect(c.admin.SubResource("scale").Get(c.ctx, obd, scale)).To(Succeed())
			g.Expect(scale.Status.Replicas).To(BeEquivalentTo(1))
			g.Expect(scale.Status.Selector).To(Equal("outbox.dev/component=dispatcher,outbox.dev/dispatcher=orders"))
			scale.Spec.Replicas = 0
			g.Expect(c.admin.SubResource("scale").Update(c.ctx, obd, client.WithSubResourceBody(scale))).To(Succeed())
		}).Should(Succeed())
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		Expect(c.admin.Delete(c.ctx, fetch(c, &corev1.Pod{}, "pod-0"), client.GracePeriodSeconds(0))).To(Succeed())
		c.deployed(0, 0)
		c.expect(kstatus.CurrentStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonScaledToZero, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonScaledToZero, ""},
			want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "spec.replicas is 0"})
	})
})

// refuseMore makes a policy of the namespace that refuses Deployments with more than two replicas, and waits until it applies.
func refuseMore(namespace string) {
	GinkgoHelper()
	meta := metav1.ObjectMeta{Name: "no-more-in-" + namespace}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}}},
		},
		Validations: []admissionv1.Validation{{Expression: "object.spec.replicas <= 2"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	for _, o := range []client.Object{policy, binding} {
		Expect(client.IgnoreAlreadyExists(admin.Create(context.Background(), o))).To(Succeed()) // an edit is repeated after a conflict
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "orders-dispatcher"}}
	Eventually(func() error {
		return admin.Patch(context.Background(), deployment, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`)), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(meta.Name)))
	DeferCleanup(func() {
		for _, o := range []client.Object{policy, binding} {
			Expect(client.IgnoreNotFound(admin.Delete(context.Background(), o))).To(Succeed())
		}
	})
}

// startedAt lets the pod's container have started so long ago.
func (c *cluster) startedAt(name string, ago time.Duration) *corev1.Pod {
	GinkgoHelper()
	pod := fetch(c, &corev1.Pod{}, name)
	editStatus(c, pod, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "dispatcher", Image: "outbox-operator:v1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-ago))}}}}
	})
	return pod
}

var _ = Describe("a reference that goes while pods run", Label("references"), func() {
	// The kubelet mounts the files of running pods again, and reports what it misses. CONTRACT: C-101, C-103
	DescribeTable("is reported, and events flow:", func(words, reason, message string) {
		c, _ := delivering(rare) // nothing but watches can notice it
		pod := c.startedAt("pod-0", time.Hour)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})

		said := c.mountFails(pod, `MountVolume.SetUp failed for volume "secrets" : `+words, time.Minute)
		c.expect(kstatus.CurrentStatus,
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, reason, message},
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, reason, "keep what they have read"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "ReferencesResolved"})
		c.expectEvent(corev1.EventTypeWarning, reason, message)
		Expect(meta.FindStatusCondition(c.get().Status.Conditions, api.ReconcilingCondition)).To(BeNil(), "no pass waits for it")

		// A pod that has started since had its files.
		c.startedAt("pod-0", time.Second)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
		Expect(c.admin.Delete(c.ctx, said)).To(Succeed())
	},
		Entry("a Secret", `secret "orders-db" not found`, api.ReasonSecretNotFound, `Secret "orders-db", which spec.database.secretRef names, does not exist in namespace`),
		Entry("a key", `references non-existent secret key: dsn`, api.ReasonSecretKeyNotFound, `Secret "orders-db", which spec.database.secretRef names, has no key "dsn"`),
	)

	// The kubelet says nothing when it could again.
	It("is forgotten when the kubelet speaks of it no more", func() {
		c, _ := delivering(tick)
		pod := c.startedAt("pod-0", time.Hour)
		c.mountFails(pod, `secret "orders-db" not found`, 4*time.Minute)
		c.mountFails(pod, `secret "others" not found`, 2*time.Hour)
		c.passes(3)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
		c.mountFails(pod, `secret "orders-db" not found`, time.Minute)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
	})

	// The kubelet mounts the same files for another pod.
	It("is there again when another pod has started since", func() {
		c, _ := delivering(tick)
		pod := c.startedAt("pod-0", time.Hour)
		c.mountFails(pod, `secret "orders-db" not found`, 5*time.Second)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
		well := c.healthy()
		c.newPod("fresh", runs, &well)
		c.passes(3)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
		c.startedAt("fresh", 0)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
	})
})
