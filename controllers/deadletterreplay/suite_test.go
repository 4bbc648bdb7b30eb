package deadletterreplay_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// The specs share an API server; each has a namespace and a manager of its own.
func TestOnTheAPIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	RegisterFailHandler(Fail)
	RunSpecs(t, "DeadLetterReplays on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

var _ = BeforeSuite(func() { admin = operatortest.Admin(GinkgoTB()) })

// tick is the time between two looks of a manager.
const tick = 100 * time.Millisecond

// cluster is a namespace with a manager. The spec plays the Job controller and the kubelet, and an HTTP server the pods.
type cluster struct {
	ctx       context.Context
	namespace string
	server    *httptest.Server

	mu        sync.Mutex
	statuses  map[string]status.Status
	requested int
	writes    []string
	refused   []string
}

func start() *cluster {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	DeferCleanup(cancel)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	c := &cluster{ctx: ctx, namespace: namespace.Name, statuses: map[string]status.Status{}}
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		current, ok := c.statuses[strings.TrimPrefix(r.URL.Path, "/")]
		c.requested++
		c.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(current)
	}))
	DeferCleanup(c.server.Close)
	c.manage()
	return c
}

// manage runs a manager until the spec ends, or until it is stopped.
func (c *cluster) manage() (stop func()) {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(context.Background())
	pods := observe.NewClient()
	pods.URL = func(pod *corev1.Pod) string { return c.server.URL + "/" + pod.Name }
	mgr, err := manager.New(ctx, operatortest.Operator(GinkgoTB(), c.record), manager.Options{
		DispatcherImage: "outbox-operator:v1", ObserveInterval: tick, WatchNamespaces: []string{c.namespace},
		OperatorNamespace: "outbox-system", MetricsAddress: "0", ProbeAddress: "0", Pods: pods,
	})
	Expect(err).NotTo(HaveOccurred())
	done := make(chan error)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		Expect(<-done).To(Succeed())
		c.mu.Lock()
		refused := slices.Clone(c.refused)
		c.mu.Unlock()
		Expect(refused).To(BeEmpty(), "requests that config/rbac does not allow")
	})
	DeferCleanup(func() { stop() })
	return stop
}

func (c *cluster) record(req *http.Request, resp *http.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.Method != http.MethodGet {
		c.writes = append(c.writes, req.Method+" "+req.URL.Path)
	}
	if resp.StatusCode == http.StatusForbidden {
		c.refused = append(c.refused, req.Method+" "+req.URL.Path)
	}
}

// wrote are the writes so far, without Events, of which one may still be under way when a status is as expected.
func (c *cluster) wrote() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.writes), func(request string) bool { return strings.Contains(request, "/events") })
}

// requests is how often a pod's status was requested.
func (c *cluster) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requested
}

// outbox is an Outbox with a login for replays.
func (c *cluster) outbox() *api.Outbox {
	return &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: c.namespace}, Spec: api.OutboxSpec{
		SecretRef: api.SecretRef{Name: "orders-db"}, ReplayLogin: &api.ReplayLogin{SecretRef: &api.SecretRef{Name: "orders-replay"}},
	}}
}

// replay is a plain DeadLetterReplay.
func (c *cluster) replay() *api.DeadLetterReplay {
	return &api.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: c.namespace}, Spec: api.DeadLetterReplaySpec{
		OutboxRef: &api.OutboxRef{Name: "orders"}, Namespace: "shop", Action: api.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
		Selector: api.DeadLetterSelector{Group: "7f3a9c21"},
	}}
}

func (c *cluster) create(objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		Expect(admin.Create(c.ctx, o)).To(Succeed())
	}
}

func (c *cluster) get() *api.DeadLetterReplay {
	GinkgoHelper()
	return fetch(c, &api.DeadLetterReplay{}, "chg-812")
}

// fetch waits until the object is there.
func fetch[T client.Object](c *cluster, o T, name string) T {
	GinkgoHelper()
	o.SetName(name)
	o.SetNamespace(c.namespace)
	Eventually(func() error { return admin.Get(c.ctx, client.ObjectKeyFromObject(o), o) }).Should(Succeed())
	return o
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
	c.create(pod)
	c.setPod(pod, state)
	return pod
}

func (c *cluster) setPod(pod *corev1.Pod, state corev1.PodStatus) {
	GinkgoHelper()
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		pod.Status = state
		return admin.Status().Update(c.ctx, pod)
	}).Should(Succeed())
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses[pod] = status.Status{Name: c.namespace + "/chg-812-replay", State: "Running", Source: source, Schema: status.Schema{State: "Ready"}, Replay: p}
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
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		now := metav1.Now()
		job.Status.StartTime = &now
		job.Status.Conditions = []batchv1.JobCondition{
			{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: now},
			{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: now},
		}
		return admin.Status().Update(c.ctx, job)
	}).Should(Succeed())
}

// completes plays the Job controller's verdict: it ended well then.
func (c *cluster) completes(job *batchv1.Job, at time.Time) {
	GinkgoHelper()
	then := metav1.NewTime(at.Truncate(time.Second))
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		job.Status = batchv1.JobStatus{StartTime: &then, CompletionTime: &then, Succeeded: 1}
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: then})
		}
		return admin.Status().Update(c.ctx, job)
	}).Should(Succeed())
}

// want is a condition: its type, status and reason, and a part of its message.
type want struct {
	kind            string
	status          metav1.ConditionStatus
	reason, message string
}

// expect waits until the conditions are as wanted and kstatus comes to the conclusion.
func (c *cluster) expect(conclusion kstatus.Status, wants ...want) *api.DeadLetterReplay {
	GinkgoHelper()
	var o *api.DeadLetterReplay
	Eventually(func(g Gomega) {
		o = c.get()
		for _, w := range wants {
			got := meta.FindStatusCondition(o.Status.Conditions, w.kind)
			g.Expect(got).NotTo(BeNil(), "%s in %v", w.kind, o.Status.Conditions)
			g.Expect([]any{got.Status, got.Reason}).To(Equal([]any{w.status, w.reason}), "%s: %s", w.kind, got.Message)
			g.Expect(got.Message).To(ContainSubstring(w.message))
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		g.Expect(err).NotTo(HaveOccurred())
		result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Status).To(Equal(conclusion), "%v", o.Status.Conditions)
	}).Should(Succeed())
	return o
}

// expectEvent waits for an event about the DeadLetterReplay.
func (c *cluster) expectEvent(kind, reason, note string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(admin.List(c.ctx, &events, client.InNamespace(c.namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("Type", kind), HaveField("Reason", reason),
			HaveField("Note", ContainSubstring(note)), HaveField("Regarding.Kind", "DeadLetterReplay"))))
	}).Should(Succeed())
}
