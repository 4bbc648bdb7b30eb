package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// remountFails records an Event of that age: the kubelet cannot mount a pod's files again.
func (c *cluster) remountFails(pod *corev1.Pod, words string, ago time.Duration) *corev1.Event {
	GinkgoHelper()
	said := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "-", Namespace: c.namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedMount", Message: words,
		LastTimestamp: metav1.NewTime(time.Now().Add(-ago)),
	}
	c.create(said)
	return said
}

// startedAt lets the pod's container have started so long ago.
func (c *cluster) startedAt(name string, ago time.Duration) *corev1.Pod {
	GinkgoHelper()
	pod := fetch(c, &corev1.Pod{}, name)
	Eventually(func() error {
		if err := c.admin.Get(c.ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "dispatcher", Image: "outbox-operator:v1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-ago))}}}}
		return c.admin.Status().Update(c.ctx, pod)
	}).Should(Succeed())
	return pod
}

var _ = Describe("a reference that goes while pods run", Label("references"), func() {
	// The kubelet mounts the files of running pods again, and reports what it misses. CONTRACT: C-101, C-103
	DescribeTable("is reported, and events flow:", func(words, reason, message string) {
		c := start(rare) // nothing but watches can notice it
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		pod := c.startedAt("pod-0", time.Hour)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})

		said := c.remountFails(pod, `MountVolume.SetUp failed for volume "secrets" : `+words, time.Minute)
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
		Expect(c.requests.forbidden()).To(BeEmpty())
	},
		Entry("a Secret", `secret "orders-db" not found`, api.ReasonSecretNotFound, `Secret "orders-db", which spec.database.secretRef names, does not exist in namespace`),
		Entry("a key", `references non-existent secret key: dsn`, api.ReasonSecretKeyNotFound, `Secret "orders-db", which spec.database.secretRef names, has no key "dsn"`),
	)

	// The kubelet says nothing when it could again.
	It("is forgotten when the kubelet speaks of it no more", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		pod := c.startedAt("pod-0", time.Hour)
		c.remountFails(pod, `secret "orders-db" not found`, 4*time.Minute)
		c.remountFails(pod, `secret "others" not found`, 2*time.Hour)
		c.passes(3)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
		c.remountFails(pod, `secret "orders-db" not found`, time.Minute)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
	})

	// The kubelet mounts the same files for another pod.
	It("is there again when another pod has started since", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		pod := c.startedAt("pod-0", time.Hour)
		c.remountFails(pod, `secret "orders-db" not found`, 5*time.Second)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
		well := c.healthy()
		c.newPod("fresh", runs, &well)
		c.passes(3)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
		c.startedAt("fresh", 0)
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
	})

	// It is not the cause of what else goes wrong.
	It("leaves Ready to the database that is down", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		pod := c.startedAt("pod-0", time.Hour)
		c.remountFails(pod, `secret "orders-db" not found`, time.Minute)
		down := c.healthy()
		down.Source = status.Link{State: status.Unreachable, Reason: "ConnectionRefused", Message: "nothing listens; start the server"}
		c.pods.says("pod-0", down)
		c.expect(kstatus.InProgressStatus,
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonConnectionFailed, "start the server"})
	})

	// The pods cannot log in because of it: it is the cause.
	It("makes Ready False when no event flows", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		pod := c.startedAt("pod-0", time.Hour)
		c.remountFails(pod, `secret "orders-db" not found`, time.Minute)
		ill := c.healthy()
		ill.Source.State, ill.Source.Reason = "Unreachable", "AuthenticationFailed"
		c.pods.says("pod-0", ill)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""})
	})
})
