package deadletterreplay_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest/specs"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// The specs share an API server; each has a namespace and a manager of its own.
func TestOnTheAPIServer(t *testing.T) {
	specs.Run(t, "DeadLetterReplays on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

var _ = BeforeSuite(func() { admin = operatortest.Admin(GinkgoTB()) })

// tick is the time between two looks of a manager.
const tick = 100 * time.Millisecond

// cluster is a namespace with a manager.
type cluster struct {
	*specs.Cluster
	ctx       context.Context
	namespace string
}

func start() *cluster {
	GinkgoHelper()
	own := specs.NewCluster(admin)
	c := &cluster{Cluster: own, ctx: own.Ctx, namespace: own.Namespace}
	c.manage()
	return c
}

// manage runs a manager until the spec ends, or until it is stopped.
func (c *cluster) manage() (stop func()) {
	GinkgoHelper()
	return c.Manage(manager.Options{ObserveInterval: tick})
}

// wrote are the writes so far, without Events, of which one may still be under way when a status is as expected.
func (c *cluster) wrote() []string {
	return slices.DeleteFunc(c.Requests.Writes(""), func(request string) bool { return strings.Contains(request, "/events") })
}

// outbox is an Outbox with a login for replays.
func (c *cluster) outbox() *api.Outbox {
	return &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: c.namespace}, Spec: spec.Outbox{
		SecretRef: spec.SecretRef{Name: "orders-db"}, ReplayLogin: &spec.ReplayLogin{SecretRef: &spec.SecretRef{Name: "orders-replay"}},
	}}
}

// replay is a plain DeadLetterReplay.
func (c *cluster) replay() *api.DeadLetterReplay {
	return &api.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: c.namespace}, Spec: spec.Replay{
		OutboxRef: &spec.OutboxRef{Name: "orders"}, Namespace: "shop", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
		Selector: spec.DeadLetterSelector{Group: "7f3a9c21"},
	}}
}

func (c *cluster) get() *api.DeadLetterReplay {
	GinkgoHelper()
	return fetch(c, &api.DeadLetterReplay{}, "chg-812")
}

// fetch waits until the object is there.
func fetch[T client.Object](c *cluster, o T, name string) T {
	GinkgoHelper()
	return specs.Fetch(c.Cluster, o, name)
}

func (c *cluster) job() *batchv1.Job { return fetch(c, &batchv1.Job{}, "chg-812-replay") }

// pod plays the Job controller: it makes a pod of the Job, with the status.
func (c *cluster) pod(job *batchv1.Job, name string, state corev1.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: job.Spec.Template.Labels}, Spec: job.Spec.Template.Spec}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	pod.Labels[batchv1.JobNameLabel] = job.Name
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.NodeName = "node"
	c.Create(pod)
	c.setPod(pod, state)
	return pod
}

func (c *cluster) setPod(pod *corev1.Pod, state corev1.PodStatus) {
	GinkgoHelper()
	specs.EditStatus(c.Cluster, pod, func(pod *corev1.Pod) { pod.Status = state })
}

var runs = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}

// ended is a pod that left the words.
func ended(code int32, words string) corev1.PodStatus {
	phase := corev1.PodSucceeded
	if code != 0 {
		phase = corev1.PodFailed
	}
	return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: words, FinishedAt: metav1.NewTime(time.Now().Truncate(time.Second))}}}}}
}

// says sets the status of a pod.
func (c *cluster) says(pod string, p *status.Replay, source status.Link) {
	c.Pods.Says(pod, status.Status{Name: c.namespace + "/chg-812-replay", State: "Running", Source: source, Schema: status.Schema{State: "Ready"}, Replay: p})
}

var reached = status.Link{State: status.Reachable}

var beganAt = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

func progress(p status.Replay) string {
	text, err := json.Marshal(p)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// fails plays the Job controller's verdict.
func (c *cluster) fails(job *batchv1.Job, reason string) {
	GinkgoHelper()
	specs.EditStatus(c.Cluster, job, func(job *batchv1.Job) {
		now := metav1.Now()
		job.Status.StartTime = &now
		job.Status.Conditions = []batchv1.JobCondition{
			{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: now},
			{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: now},
		}
	})
}

// completes plays the Job controller's verdict: it ended well then.
func (c *cluster) completes(job *batchv1.Job, at time.Time) {
	GinkgoHelper()
	then := metav1.NewTime(at.Truncate(time.Second))
	specs.EditStatus(c.Cluster, job, func(job *batchv1.Job) {
		job.Status = batchv1.JobStatus{StartTime: &then, CompletionTime: &then, Succeeded: 1}
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: then})
		}
	})
}

// want is a condition: its type, status and reason, and a part of its message.
type want specs.Condition

// expect waits until the conditions are as wanted and kstatus comes to the conclusion.
func (c *cluster) expect(conclusion kstatus.Status, wants ...want) *api.DeadLetterReplay {
	GinkgoHelper()
	return specs.Expect(c.Cluster, c.get(), conclusion, wants...)
}

// expectEvent waits for an event about the DeadLetterReplay.
func (c *cluster) expectEvent(kind, reason, note string) {
	GinkgoHelper()
	c.ExpectEvent([2]string{"DeadLetterReplay", "chg-812"}, kind, reason, note)
}
