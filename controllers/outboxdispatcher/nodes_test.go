package outboxdispatcher_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// podServer serves the status of all pods of a spec.
type podServer struct {
	server *httptest.Server
	polled atomic.Int64

	mu     sync.Mutex
	status map[string][]byte // JSON
	names  map[string]bool   // of those that were polled
}

func newPodServer() *podServer {
	p := &podServer{status: map[string][]byte{}, names: map[string]bool{}}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.polled.Add(1)
		p.mu.Lock()
		name := strings.TrimPrefix(r.URL.Path, "/")
		p.names[name] = true
		current, ok := p.status[name]
		p.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(current)
	}))
	DeferCleanup(p.server.Close)
	return p
}

func (p *podServer) url(pod *corev1.Pod) string { return p.server.URL + "/" + pod.Name }

// who returns the names of the pods that were polled.
func (p *podServer) who() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.names))
}

// says sets the pod's status.
func (p *podServer) says(pod string, current status.Status) {
	text, err := json.Marshal(current)
	if err != nil {
		panic(err) // plain data
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status[pod] = text
}

// silent makes the pod stop responding.
func (p *podServer) silent(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.status, pod)
}

// rollOut plays the Deployment controller and the kubelet: one ready pod for each status, named
// pod-0, pod-1 and so on.
func (c *cluster) rollOut(statuses ...status.Status) {
	GinkgoHelper()
	for i, podStatus := range statuses {
		name := fmt.Sprintf("pod-%d", i)
		c.pods.says(name, podStatus)
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

// mountFails lets the kubelet say that it cannot mount a pod's files.
func (c *cluster) mountFails(pod *corev1.Pod, words string) {
	GinkgoHelper()
	c.create(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "-", Namespace: c.namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedMount", Message: words,
		LastTimestamp: metav1.Now(),
	})
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
	ended := batchv1.JobStatus{StartTime: &started}
	if lastWords == "" {
		ended.Succeeded, ended.CompletionTime = 1, &now
		ended.Conditions = []batchv1.JobCondition{done(batchv1.JobSuccessCriteriaMet), done(batchv1.JobComplete)}
	} else {
		pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = job.Name+"-0", c.namespace
		c.start(pod, corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
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
