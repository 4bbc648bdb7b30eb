package outboxdispatcher_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

var _ = Describe("what pods report", Label("status"), func() {
	// Only pods that a ReplicaSet of the Deployment owns are polled, whatever labels others have.
	It("is polled from pods that the Deployment owns, and from no others", Label("security"), func() {
		c, _ := delivering(tick)
		ill := c.healthy()
		ill.Source = status.Link{State: status.Unreachable, Message: "a stranger says so"}
		owned := fetch(c, &corev1.Pod{}, "pod-0")
		for name, owner := range map[string][]metav1.OwnerReference{
			"without-owner": nil,
			"forged-set":    {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "orders-dispatcher-5d4f8c", UID: "4711", Controller: new(true)}},
			"other-kind":    {{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "orders-dispatcher-5d4f8c", UID: owned.OwnerReferences[0].UID, Controller: new(true)}},
		} {
			c.Pods.Says(name, ill)
			stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: owned.Labels, OwnerReferences: owner}, Spec: *owned.Spec.DeepCopy()}
			c.create(stranger)
			editStatus(c, stranger, func(pod *corev1.Pod) {
				pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
			})
		}
		c.passes(5)
		c.expect(kstatus.CurrentStatus, want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		Expect(c.Pods.Who()).To(Equal([]string{"pod-0"}))
	})

	It("is unknown when no pod responds", Label("network"), func() {
		c := start(tick)
		c.create(c.dispatcher())
		podStatus := c.healthy()
		podStatus.Backlog.Pending, podStatus.Backlog.Dead = 4, 2
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "Dead column"})

		c.Pods.Silent("pod-0")
		unknown := func(kind string) want {
			return want{kind, metav1.ConditionUnknown, api.ReasonNotObserved, "NetworkPolicy"}
		}
		c.expect(kstatus.InProgressStatus, unknown(api.ReadyCondition), unknown(api.SourceReachableCondition), unknown(api.SinkReachableCondition),
			unknown(api.SchemaReadyCondition), unknown(api.DeadLettersPresentCondition))
		Expect([]int64{c.get().Status.Pending, c.get().Status.Dead}).To(Equal([]int64{4, 2}), "the last counts stay")
		Expect(c.get().Status.RespondingReplicas).To(BeEquivalentTo(0))

		other := c.healthy()
		other.Name = "elsewhere/orders" // the pod's address was given to another
		c.Pods.Says("pod-0", other)
		c.passes(2)
		c.expect(kstatus.InProgressStatus, unknown(api.ReadyCondition))
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus)
	})

	// CONTRACT: C-43
	It("reports dead letters", func() {
		c, _ := delivering(tick)
		podStatus := c.healthy()
		c.expect(kstatus.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionFalse, api.ReasonNoDeadLetters, ""})

		podStatus.Backlog.Dead = 1
		since := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
		group := status.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Place: "/items/*/price", Count: 1, Since: status.At(since), Last: status.At(since.Add(time.Hour))}
		reported := status.DeadGroupExample{DeadGroup: group, Sample: "00000000-0000-0000-0000-000000000001", Error: "of a single delivery"}
		podStatus.Backlog.DeadGroups = []status.DeadGroupExample{reported, reported, {DeadGroup: status.DeadGroup{Topic: "nameless"}}}
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, // a dead row does not keep the others from being delivered
			want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "outbox_dead_letters"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(c.get().Status.Dead).To(BeEquivalentTo(1))
		group.Reason = "PermanentFailure"
		Expect(c.get().Status.DeadGroups).To(HaveExactElements(group))
		c.expectEvent(corev1.EventTypeWarning, api.ReasonDeadLetters, "outbox_dead_letters")
		c.expectEvent(corev1.EventTypeNormal, api.ReasonDelivering, "")
	})
})

var _ = Describe("security", Label("security"), func() {
	// What a Secret holds is in nothing that the controller writes: no object, status, condition or Event,
	// also while a key is missing. CONTRACT: C-73, C-101
	It("keeps what a Secret holds out of all that the controller writes", func() {
		const planted = "s3cr3t"
		c := start(tick)
		obd := c.dispatcher()
		others := &spec.SecretRef{Name: "others"}
		obd.Spec.Sink = spec.Sink{
			HTTP: &spec.HTTPSink{URL: "https://warehouse.example.com/events", SigningSecretRef: &spec.SecretRef{Name: "others", Key: "signing"}},
			Auth: &spec.Auth{Type: spec.AuthToken, SecretRef: &spec.SecretRef{Name: "warehouse"}},
			TLS:  &spec.TLS{CASecretRef: &spec.SecretRef{Name: "others", Key: "ca"}, ClientCertSecretRef: others},
		}
		obd.Spec.Message.SchemaRegistry = &spec.SchemaRegistry{URL: "https://registry.example.com", Auth: &spec.Auth{Type: spec.AuthBasic, SecretRef: others}}
		for _, name := range []string{"orders-db", "warehouse", "others"} {
			data := map[string]string{}
			for _, key := range []string{"dsn", "token", "signing", "ca", "tls.crt", "tls.key", "username", "password"} {
				data[key] = planted
			}
			c.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, StringData: data})
		}
		c.create(obd)
		pod := c.pod("pod-a", corev1.PodStatus{Phase: corev1.PodPending})
		c.mountFails(pod, `MountVolume.SetUp failed for volume "secrets" : references non-existent secret key: token`, 0)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretKeyNotFound, "token"})
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)

		for _, list := range []client.ObjectList{
			&api.OutboxDispatcherList{}, &appsv1.DeploymentList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &eventsv1.EventList{}, &corev1.EventList{},
		} {
			Expect(c.admin.List(c.ctx, list, client.InNamespace(c.namespace))).To(Succeed())
			text, err := json.Marshal(list)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(text)).NotTo(Or(ContainSubstring(planted), ContainSubstring(base64.StdEncoding.EncodeToString([]byte(planted))[:7])),
				"%T shows what a Secret holds", list)
		}
	})

	// The API server enforces the restricted profile in the namespace, so the pods of rollOut prove the
	// dispatchers' template; a migration Job's pod is tried here.
	It("is that of the restricted profile", func() {
		c := start(tick)
		c.create(c.migrated())
		job := c.job()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "migrate", Namespace: c.namespace}, Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Spec.ServiceAccountName = ""
		c.create(pod)
		loose := pod.DeepCopy()
		loose.ObjectMeta = metav1.ObjectMeta{Name: "loose", Namespace: c.namespace}
		loose.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		Expect(c.admin.Create(c.ctx, loose)).To(MatchError(ContainSubstring("PodSecurity")), "the profile is enforced")
		for _, template := range []corev1.PodTemplateSpec{job.Spec.Template, func() corev1.PodTemplateSpec {
			c.finish(job, time.Now(), "")
			return c.deployment().Spec.Template
		}()} {
			Expect(*template.Spec.AutomountServiceAccountToken).To(BeFalse())
		}
		Expect(*fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").AutomountServiceAccountToken).To(BeFalse())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})

// rollOut plays the Deployment controller and the kubelet: one ready pod for each status, named
// pod-0, pod-1 and so on.
func (c *cluster) rollOut(statuses ...status.Status) {
	GinkgoHelper()
	for i, podStatus := range statuses {
		name := fmt.Sprintf("pod-%d", i)
		c.Pods.Says(name, podStatus)
		c.pod(name, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}})
	}
	c.deployed(int32(len(statuses)), int32(len(statuses)))
}

// pod makes a pod of the Deployment as it is now, unless there is one of the name.
func (c *cluster) pod(name string, current corev1.PodStatus) *corev1.Pod {
	GinkgoHelper()
	const hash = "5d4f8c"
	deployment := c.deployment()
	pod := &corev1.Pod{ObjectMeta: *deployment.Spec.Template.ObjectMeta.DeepCopy(), Spec: *deployment.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, c.namespace
	pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	pod.OwnerReferences = c.owner(deployment, hash)
	c.start(pod, current)
	return pod
}

// owner makes a ReplicaSet of the Deployment, unless it is there, and returns how its pods name it. It names no
// files.
func (c *cluster) owner(deployment *appsv1.Deployment, hash string) []metav1.OwnerReference {
	GinkgoHelper()
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: deployment.Name + "-" + hash, Namespace: c.namespace, Labels: deployment.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: deployment.Spec.Selector, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: deployment.Spec.Template.Labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: desired.Container, Image: "outbox-operator:v1"}}},
		}},
	}
	if err := c.admin.Create(c.ctx, set); apierrors.IsAlreadyExists(err) {
		set = fetch(c, &appsv1.ReplicaSet{}, set.Name)
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
	return []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
}

// start makes a pod as the kubelet has it, unless there is one of the name.
func (c *cluster) start(pod *corev1.Pod, current corev1.PodStatus) {
	GinkgoHelper()
	// There are no tokens and no service accounts here; the rest is the pod as it would be.
	pod.Spec.ServiceAccountName, pod.Spec.NodeName = "", "node"
	err := c.admin.Create(c.ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return
	}
	Expect(err).NotTo(HaveOccurred())
	editStatus(c, pod, func(pod *corev1.Pod) { pod.Status = current })
}

// jobPod makes the pod of a Job, unless it is there.
func (c *cluster) jobPod(job *batchv1.Job, current corev1.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = job.Name+"-0", c.namespace
	c.start(pod, current)
	return pod
}

// mountFails lets the kubelet have said, so long ago, that it cannot mount a pod's files.
func (c *cluster) mountFails(pod *corev1.Pod, words string, ago time.Duration) *corev1.Event {
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

// deployed sets what the Deployment controller would report: all pods are new, and some ready.
func (c *cluster) deployed(pods, ready int32) {
	GinkgoHelper()
	editStatus(c, c.deployment(), func(deployment *appsv1.Deployment) {
		deployment.Status = appsv1.DeploymentStatus{
			ObservedGeneration: deployment.Generation,
			Replicas:           pods, UpdatedReplicas: pods,
			ReadyReplicas: ready, AvailableReplicas: ready, UnavailableReplicas: pods - ready,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}},
		}
	})
}

// finish plays the Job controller: the Job ended well, or badly at that time with those last words.
func (c *cluster) finish(job *batchv1.Job, at time.Time, lastWords string) {
	GinkgoHelper()
	done := func(kind batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}
	}
	started, now := metav1.NewTime(at), metav1.NewTime(at)
	ended := batchv1.JobStatus{StartTime: cmp.Or(job.Status.StartTime, &started)} // it cannot be changed
	if lastWords == "" {
		ended.Succeeded, ended.CompletionTime = 1, &now
		ended.Conditions = []batchv1.JobCondition{done(batchv1.JobSuccessCriteriaMet), done(batchv1.JobComplete)}
	} else {
		c.jobPod(job, corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: lastWords}}}}})
		ended.Failed = 1
		ended.Conditions = []batchv1.JobCondition{done(batchv1.JobFailureTarget), done(batchv1.JobFailed)}
	}
	editStatus(c, job, func(job *batchv1.Job) { job.Status = ended })
}

// succeed lets the only migration Job succeed.
func (c *cluster) succeed() {
	GinkgoHelper()
	c.finish(c.job(), time.Now(), "")
}
