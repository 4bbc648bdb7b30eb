// Package specs has what the suites of specs on an API server share: a namespace with an operator, whose pods a spec plays.
package specs

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

// Run runs the specs of a package, which share an API server. Each has a [Cluster] of its own.
func Run(t *testing.T, description string) {
	ctrl.SetLogger(logr.Discard())
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, description)
}

// Cluster is a namespace, where a spec plays the controllers of Deployments and Jobs and the kubelet. Its functions fail
// the spec when they cannot do their work.
type Cluster struct {
	// Ctx ends with the spec, or after 10 minutes.
	Ctx context.Context
	// Client may do everything, and reads from the API server.
	Client    client.Client
	Namespace string
	Requests  *Requests
	Pods      *Pods
}

// NewCluster makes a namespace with the labels, in which pods are restricted.
func NewCluster(admin client.Client) *Cluster {
	ginkgo.GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // for requests that hang
	ginkgo.DeferCleanup(cancel)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "test-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	gomega.Expect(admin.Create(ctx, namespace)).To(gomega.Succeed())
	return &Cluster{Ctx: ctx, Client: admin, Namespace: namespace.Name, Requests: &Requests{}, Pods: newPods()}
}

// Manage runs an operator in the namespace until stop is called, or the spec ends, or the container when BeforeAll calls
// this. What o leaves empty is as in all specs.
func (c *Cluster) Manage(o manager.Options) (stop func()) {
	ginkgo.GinkgoHelper()
	ctx, cancel := context.WithCancel(context.Background())
	o.DispatcherImage = cmp.Or(o.DispatcherImage, "outbox-operator:v1")
	o.OperatorNamespace = cmp.Or(o.OperatorNamespace, "outbox-system")
	o.WatchNamespaces = append(o.WatchNamespaces, c.Namespace)
	o.MetricsAddress, o.ProbeAddress = "0", "0"
	o.Pods = observe.NewClient()
	o.Pods.URL = func(pod *corev1.Pod) string { return c.Pods.server.URL + "/" + pod.Name }
	mgr, err := manager.New(ctx, operatortest.Operator(ginkgo.GinkgoTB(), c.Requests.record), o)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	done := make(chan error)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		gomega.Expect(<-done).To(gomega.Succeed(), "the manager ended")
		gomega.Expect(c.Requests.Forbidden()).To(gomega.BeEmpty(), "requests that config/rbac does not allow")
	})
	ginkgo.DeferCleanup(func() { stop() })
	return stop
}

// Create creates objects.
func (c *Cluster) Create(objects ...client.Object) {
	ginkgo.GinkgoHelper()
	for _, o := range objects {
		gomega.Expect(c.Client.Create(c.Ctx, o)).To(gomega.Succeed())
	}
}

// Fetch waits until the object of the name is there.
func Fetch[T client.Object](c *Cluster, o T, name string) T {
	ginkgo.GinkgoHelper()
	o.SetName(name)
	o.SetNamespace(c.Namespace)
	gomega.Eventually(func() error { return c.Client.Get(c.Ctx, client.ObjectKeyFromObject(o), o) }).Should(gomega.Succeed())
	return o
}

// Edit changes an object, and retries after a conflict.
func Edit[T client.Object](c *Cluster, o T, change func(T)) {
	ginkgo.GinkgoHelper()
	edit(c, o, change, func() error { return c.Client.Update(c.Ctx, o) })
}

// EditStatus is Edit for the status.
func EditStatus[T client.Object](c *Cluster, o T, change func(T)) {
	ginkgo.GinkgoHelper()
	edit(c, o, change, func() error { return c.Client.Status().Update(c.Ctx, o) })
}

func edit[T client.Object](c *Cluster, o T, change func(T), update func() error) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		if err := c.Client.Get(c.Ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return update()
	}).Should(gomega.Succeed())
}

// Condition is what is wanted of a condition. Message is a part of its message. A suite has a type of its own with these
// fields, so that its specs need not name them.
type Condition struct {
	Type            string
	Status          metav1.ConditionStatus
	Reason, Message string
}

// Expect waits until the conditions of an object are as wanted, those of its generation, and kstatus comes to the
// conclusion. One that is wanted at rest is absent.
func Expect[T client.Object, W interface {
	~struct {
		Type            string
		Status          metav1.ConditionStatus
		Reason, Message string
	}
}](c *Cluster, o T, conclusion kstatus.Status, wants ...W) T {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(g gomega.Gomega) {
		g.Expect(c.Client.Get(c.Ctx, client.ObjectKeyFromObject(o), o)).To(gomega.Succeed())
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		var with struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(content, &with)).To(gomega.Succeed())
		for _, want := range wants {
			w := Condition(want)
			got := meta.FindStatusCondition(with.Status.Conditions, w.Type)
			if v1alpha1.AtRest(metav1.Condition{Type: w.Type, Status: w.Status, Reason: w.Reason}) {
				g.Expect(got).To(gomega.BeNil(), "it is at rest")
				continue
			}
			g.Expect(got).NotTo(gomega.BeNil(), "%s in %v", w.Type, with.Status.Conditions)
			g.Expect([]any{got.Status, got.Reason}).To(gomega.Equal([]any{w.Status, w.Reason}), "%s: %s", w.Type, got.Message)
			g.Expect(got.Message).To(gomega.ContainSubstring(w.Message))
			g.Expect(got.ObservedGeneration).To(gomega.Equal(o.GetGeneration()))
		}
		result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(result.Status).To(gomega.Equal(conclusion), "%v", with.Status.Conditions)
	}).Should(gomega.Succeed())
	return o
}

// ExpectEvent waits for an event about an object, of which regarding is the kind and the name. note is a part of its note.
func (c *Cluster) ExpectEvent(regarding [2]string, kind, reason, note string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(g gomega.Gomega) {
		var events eventsv1.EventList
		g.Expect(c.Client.List(c.Ctx, &events, client.InNamespace(c.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.ContainElement(gomega.And(gomega.HaveField("Type", kind), gomega.HaveField("Reason", reason),
			gomega.HaveField("Note", gomega.ContainSubstring(note)), gomega.HaveField("Regarding.Kind", regarding[0]), gomega.HaveField("Regarding.Name", regarding[1]))))
	}).Should(gomega.Succeed())
}

// Requests of the operators of a [Cluster] to the API server, without watches and discovery.
type Requests struct {
	mu sync.Mutex
	// holds are the requests whose response is held back until release is closed.
	holds   func(*http.Request) bool
	release chan struct{}
	held    int

	all, forbidden []string
}

func (r *Requests) record(req *http.Request, resp *http.Response) {
	if req.URL.Query().Has("watch") || !strings.Contains(req.URL.Path, "/namespaces/") {
		return
	}
	r.mu.Lock()
	if r.holds != nil && r.holds(req) {
		r.held++
		r.mu.Unlock()
		<-r.release
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	request := req.Method + " " + req.URL.Path
	r.all = append(r.all, request)
	if resp.StatusCode == http.StatusForbidden {
		r.forbidden = append(r.forbidden, request)
	}
}

// All returns the requests so far, as "GET /path".
func (r *Requests) All() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// Forbidden returns the requests so far that config/rbac does not allow.
func (r *Requests) Forbidden() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.forbidden)
}

// Writes returns the writes so far whose paths have the part.
func (r *Requests) Writes(part string) []string {
	return slices.DeleteFunc(r.All(), func(request string) bool {
		return strings.HasPrefix(request, http.MethodGet) || !strings.Contains(request, part)
	})
}

// Hold holds back responses until release is called, or the spec ends.
func (r *Requests) Hold(holds func(*http.Request) bool) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds, r.release = holds, make(chan struct{})
	release = sync.OnceFunc(func() { close(r.release) })
	ginkgo.DeferCleanup(release)
	return release
}

// HeldBack is how many responses were held back.
func (r *Requests) HeldBack() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Pods serves the status of all pods of a [Cluster]. A pod that says nothing is not found.
type Pods struct {
	server *httptest.Server
	mu     sync.Mutex
	polled int64
	status map[string][]byte // JSON
	names  map[string]bool   // of those that were polled
}

func newPods() *Pods {
	p := &Pods{status: map[string][]byte{}, names: map[string]bool{}}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		p.mu.Lock()
		p.polled++
		p.names[name] = true
		current, ok := p.status[name]
		p.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(current)
	}))
	ginkgo.DeferCleanup(p.server.Close)
	return p
}

// Polled is how often a status was requested.
func (p *Pods) Polled() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.polled
}

// Who returns the names of the pods that were polled.
func (p *Pods) Who() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.names))
}

// Says sets a pod's status.
func (p *Pods) Says(pod string, current any) {
	text, err := json.Marshal(current)
	if err != nil {
		panic(err) // plain data
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status[pod] = text
}

// Silent makes a pod stop responding.
func (p *Pods) Silent(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.status, pod)
}
