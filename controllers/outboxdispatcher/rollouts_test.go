package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// edited is a dispatcher whose pod delivers, with a change that rolls pods.
func edited(n int32) *cluster {
	GinkgoHelper()
	c := start(tick)
	obd := c.dispatcher()
	replicas(n)(obd)
	c.create(obd)
	statuses := []status.Status{}
	for range n {
		statuses = append(statuses, c.healthy())
	}
	c.rollOut(statuses...)
	c.expect(kstatus.CurrentStatus)
	c.edits()
	return c
}

// edits changes what rolls pods.
func (c *cluster) edits() {
	GinkgoHelper()
	was := c.deployment().Generation
	edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize++ })
	Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", was))
}

// rollingOut plays a rollout under way: old pods are ready, and one new one is there.
func (c *cluster) rollingOut(old int32) {
	GinkgoHelper()
	Eventually(func() error {
		d := c.deployment()
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: old + 1, UpdatedReplicas: 1,
			ReadyReplicas: old, AvailableReplicas: old, UnavailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated"}}}
		return c.admin.Status().Update(c.ctx, d)
	}).Should(Succeed())
}

// newPod makes a pod of the Deployment as it is now, in a ReplicaSet of its own. It statuses so, nil for not at all.
func (c *cluster) newPod(name string, current corev1.PodStatus, podStatus *status.Status) *corev1.Pod {
	GinkgoHelper()
	d := c.deployment()
	pod := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace, pod.OwnerReferences = name, c.namespace, c.owner(d, "newer")
	if podStatus != nil {
		c.pods.says(name, *podStatus)
	}
	c.start(pod, current)
	return pod
}

// runs is the status of a pod that statuses.
var runs = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}

var _ = Describe("a rollout", Label("workload", "status"), func() {
	// A new pod that hangs takes nothing from the events that the old ones deliver: its words are reported by the
	// rollout, and Ready points to them. CONTRACT: C-101
	DescribeTable("whose new pod hangs leaves Ready True: its", func(pod corev1.PodStatus, says func(*status.Status), kind, reason, words string) {
		c := edited(1)
		c.rollingOut(1)
		var podStatus *status.Status
		progressing := api.ReasonImagePullFailed
		if says != nil {
			ill := c.healthy()
			says(&ill)
			podStatus, progressing = &ill, reason
		}
		fresh := c.newPod("fresh", pod, podStatus)
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, words},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, kind},
			want{kind, metav1.ConditionFalse, reason, words},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonPartlyAvailable, words},
			want{api.ReconcilingCondition, metav1.ConditionTrue, progressing, words})
		c.expectEvent(corev1.EventTypeWarning, reason, words)

		// Without the old pod nothing flows.
		Expect(c.admin.Delete(c.ctx, fetch(c, &corev1.Pod{}, "pod-0"), client.GracePeriodSeconds(0))).To(Succeed())
		c.rollingOut(0)
		Eventually(func() bool { return meta.IsStatusConditionTrue(c.get().Status.Conditions, api.ReadyCondition) }).Should(BeFalse())

		Expect(c.admin.Delete(c.ctx, fresh, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
	},
		Entry("login is refused", runs, func(s *status.Status) {
			s.Source = status.Link{State: status.Unreachable, Reason: "AuthenticationFailed", Message: "the login was refused; correct the password in the Secret"}
			s.Schema = status.Schema{State: "Unknown"}
		}, api.SourceReachableCondition, api.ReasonAuthenticationFailed, "correct the password"),
		Entry("schema is too old", runs, func(s *status.Status) {
			s.Schema = status.Schema{State: "TooOld", Message: "version 1 of 2; run migrate up"}
		}, api.SchemaReadyCondition, api.ReasonTooOld, "run migrate up"),
		Entry("destination is down", runs, func(s *status.Status) {
			s.Sink = status.Link{State: status.Unreachable, Reason: "CertificateInvalid", Message: "unknown authority; name the right ca"}
		}, api.SinkReachableCondition, api.ReasonCertificateInvalid, "name the right ca"),
		Entry("image cannot be pulled", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "dispatcher", Image: "outbox-operator:v2", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
		}}}, nil, api.WorkloadAvailableCondition, api.ReasonPartlyAvailable, "cannot be pulled"),
	)

	// Pods of one revision have one destination, so the one that sees it down is believed; pods of two may have two.
	It("to another destination is a remedy for one that is down", func() {
		c := edited(2)
		c.deployed(2, 2)
		down := c.healthy()
		down.Sink = status.Link{State: status.Unreachable, Reason: "ConnectionFailed", Message: "nothing listens; check the url"}
		c.pods.says("pod-1", down)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonConnectionFailed, "check the url"})

		c.edits()
		c.rollingOut(2)
		well := c.healthy()
		c.newPod("fresh", runs, &well)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "check the url"})
	})

	It("whose new pod is refused leaves Ready True", func() {
		c := edited(1)
		Eventually(func() error {
			d := c.deployment()
			d.Status.ObservedGeneration, d.Status.UpdatedReplicas = d.Generation, 0
			d.Status.Conditions = []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"},
				{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: `pods "a-b" is forbidden: exceeded quota: team`},
			}
			return c.admin.Status().Update(c.ctx, d)
		}).Should(Succeed())
		c.expect(kstatus.FailedStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "exceeded quota: team"},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonUnavailable, "exceeded quota: team"},
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonProgressDeadlineExceeded, "exceeded quota: team"})
	})

	// Tools that wait for a rollout hear that it has failed, as they do of the Deployment itself.
	It("is Stalled after its deadline, until it continues", func() {
		c := edited(1)
		c.rollingOut(1)
		fresh := c.newPod("fresh", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "dispatcher", Image: "outbox-operator:v2", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
		}}}, nil)
		c.expect(kstatus.InProgressStatus, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonImagePullFailed, "cannot be pulled"})
		editStatus(c, c.deployment(), func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"}}
		})
		c.expect(kstatus.FailedStatus,
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonImagePullFailed, "cannot be pulled"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "cannot be pulled"})

		c.edits() // whose rollout has a deadline of its own
		c.expect(kstatus.InProgressStatus, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonImagePullFailed, "cannot be pulled"})
		Expect(c.admin.Delete(c.ctx, fresh, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})

	It("that waits for a Secret leaves Ready True", Label("references"), func() {
		c := edited(1)
		c.rollingOut(1)
		c.mountFails(c.newPod("fresh", corev1.PodStatus{Phase: corev1.PodPending}, nil), `secret "orders-db" not found`)
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, `Secret "orders-db"`},
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, "create it"},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonSecretNotFound, "create it"})
	})
})
