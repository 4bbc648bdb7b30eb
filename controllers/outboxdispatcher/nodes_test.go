package outboxdispatcher_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// podServer answers for all pods of a test.
type podServer struct {
	server *httptest.Server
	asked  atomic.Int64

	mu     sync.Mutex
	status map[string][]byte // JSON
}

func newPodServer(t *testing.T) *podServer {
	p := &podServer{status: map[string][]byte{}}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		p.mu.Lock()
		status, ok := p.status[strings.TrimPrefix(r.URL.Path, "/")]
		p.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(status)
	}))
	t.Cleanup(p.server.Close)
	return p
}

func (p *podServer) url(pod *corev1.Pod) string { return p.server.URL + "/" + pod.Name }

// says sets what the pod answers from now on.
func (p *podServer) says(pod string, status report.Status) {
	text, err := json.Marshal(status)
	if err != nil {
		panic(err) // plain data
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status[pod] = text
}

// silent makes the pod answer no more.
func (p *podServer) silent(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.status, pod)
}

// rollOut plays the Deployment controller and the kubelet: one ready pod for each answer, named
// pod-0, pod-1 and so on.
func (c *cluster) rollOut(answers ...report.Status) {
	c.t.Helper()
	deployment := c.deployment()
	for i, answer := range answers {
		name := fmt.Sprintf("pod-%d", i)
		c.pods.says(name, answer)
		pod := &corev1.Pod{ObjectMeta: *deployment.Spec.Template.ObjectMeta.DeepCopy(), Spec: *deployment.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = name, c.namespace
		// Nobody makes tokens or checks service accounts here; the rest is the pod as it would be.
		pod.Spec.ServiceAccountName = ""
		if err := c.admin.Create(c.ctx, pod); apierrors.IsAlreadyExists(err) {
			continue
		} else {
			c.Expect(err).NotTo(HaveOccurred())
		}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "127.0.0.1"
		pod.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
		c.Expect(c.admin.Status().Update(c.ctx, pod)).To(Succeed())
	}
	c.deployed(int32(len(answers)), int32(len(answers)))
}

// deployed sets what the Deployment controller would report: all pods are new, and some ready.
func (c *cluster) deployed(pods, ready int32) {
	c.t.Helper()
	c.Eventually(func() error {
		deployment := c.deployment()
		deployment.Status = appsv1.DeploymentStatus{
			ObservedGeneration: deployment.Generation,
			Replicas:           pods, UpdatedReplicas: pods,
			ReadyReplicas: ready, AvailableReplicas: ready, UnavailableReplicas: pods - ready,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}},
		}
		return c.admin.Status().Update(c.ctx, deployment)
	}).Should(Succeed())
}

// finish plays the Job controller: the Job ended well, or badly at that time with those last words.
func (c *cluster) finish(job *batchv1.Job, at time.Time, lastWords string) {
	c.t.Helper()
	done := func(kind batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}
	}
	started, now := metav1.NewTime(at), metav1.NewTime(at)
	job.Status.StartTime = &started
	if lastWords == "" {
		job.Status.Succeeded, job.Status.CompletionTime = 1, &now
		job.Status.Conditions = []batchv1.JobCondition{done(batchv1.JobSuccessCriteriaMet), done(batchv1.JobComplete)}
	} else {
		pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = job.Name+"-0", c.namespace
		pod.Spec.ServiceAccountName = ""
		c.create(pod)
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: lastWords}}}}
		c.Expect(c.admin.Status().Update(c.ctx, pod)).To(Succeed())
		job.Status.Failed = 1
		job.Status.Conditions = []batchv1.JobCondition{done(batchv1.JobFailureTarget), done(batchv1.JobFailed)}
	}
	c.Expect(c.admin.Status().Update(c.ctx, job)).To(Succeed())
}
