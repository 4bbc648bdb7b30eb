package outboxconsumer_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// The specs share an API server; each has a namespace and a manager of its own.
func TestOnTheAPIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RegisterFailHandler(Fail)
	RunSpecs(t, "OutboxConsumers on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

var _ = BeforeSuite(func() { admin = operatortest.Admin(GinkgoTB()) })

// cluster is a namespace with a manager.
type cluster struct {
	ctx       context.Context
	namespace string

	mu      sync.Mutex
	writes  []string
	refused []string
}

func start() *cluster {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	DeferCleanup(cancel)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	c := &cluster{ctx: ctx, namespace: namespace.Name}
	running, stop := context.WithCancel(context.Background())
	mgr, err := manager.New(running, operatortest.Operator(GinkgoTB(), c.record), manager.Options{
		DispatcherImage: "outbox-operator:v1", ObserveInterval: time.Hour, WatchNamespaces: []string{c.namespace}, // passes come by watches alone
		MetricsAddress: "0", ProbeAddress: "0",
	})
	Expect(err).NotTo(HaveOccurred())
	done := make(chan error)
	go func() { done <- mgr.Start(running) }()
	DeferCleanup(func() {
		stop()
		Expect(<-done).To(Succeed())
		Expect(c.refused).To(BeEmpty(), "requests that config/rbac does not allow")
	})
	return c
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

// wrote are the writes about a consumer so far.
func (c *cluster) wrote(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.writes), func(request string) bool { return !strings.Contains(request, "/outboxconsumers/"+name+"/") })
}

func (c *cluster) create(objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		o.SetNamespace(c.namespace)
		Expect(admin.Create(c.ctx, o)).To(Succeed())
	}
}

// change changes an object, or its status, until that meets no other change.
func change[T client.Object](c *cluster, o T, update func(context.Context, T) error, set func()) {
	GinkgoHelper()
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		set()
		return update(c.ctx, o)
	}).Should(Succeed())
}

func updateSpec[T client.Object](ctx context.Context, o T) error { return admin.Update(ctx, o) }
func updateStatus[T client.Object](ctx context.Context, o T) error {
	return admin.Status().Update(ctx, o)
}

// outbox is a plain Outbox.
func outbox() *api.Outbox {
	return &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: api.OutboxSpec{SecretRef: api.SecretRef{Name: "db"}}}
}

// dispatcher is a plain OutboxDispatcher of that Outbox.
func dispatcher(name string) *api.OutboxDispatcher {
	return &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.OutboxDispatcherSpec{
		Namespace: "shop", Topics: []string{name}, OutboxRef: &api.OutboxRef{Name: "shop"}, Sink: api.Sink{Log: &api.LogSink{}}}}
}

// consumer is a plain OutboxConsumer of all dispatchers.
func consumer(name string) *api.OutboxConsumer {
	return &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.OutboxConsumerSpec{
		EventTypes: []string{"order.placed", "payment.*"}, OwnerTeam: "team-billing",
		IdempotencyMechanism: api.IdempotencyProcessedEvents, Retention: &metav1.Duration{Duration: 168 * time.Hour}}}
}

// sent makes the pods of a dispatcher report events of these types.
func (c *cluster) sent(d *api.OutboxDispatcher, types ...string) {
	GinkgoHelper()
	change(c, d, updateStatus, func() {
		d.Status.EventTypes = nil
		for _, name := range types {
			d.Status.EventTypes = append(d.Status.EventTypes, api.SeenEventType{Type: name, LastSeen: metav1.NewTime(time.Now().UTC().Truncate(24 * time.Hour))})
		}
	})
}

// verified plays a pipeline that has registered a report.
func (c *cluster) verified(o *api.OutboxConsumer, evidence api.ConsumerEvidence) {
	GinkgoHelper()
	evidence.EventType, evidence.Checks = "order.placed", 19
	change(c, o, updateSpec, func() { o.Spec.Evidence = &evidence })
}

// want is a condition: its type, status and reason, and a part of its message.
type want struct {
	kind            string
	status          metav1.ConditionStatus
	reason, message string
}

// expect waits until the conditions are as wanted and kstatus comes to the conclusion.
func expect[T client.Object](c *cluster, o T, conclusion kstatus.Status, wants ...want) T {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		g.Expect(err).NotTo(HaveOccurred())
		var conditions struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(content, &conditions)).To(Succeed())
		for _, w := range wants {
			got := meta.FindStatusCondition(conditions.Status.Conditions, w.kind)
			g.Expect(got).NotTo(BeNil(), "%s in %v", w.kind, conditions.Status.Conditions)
			g.Expect([]any{got.Status, got.Reason}).To(Equal([]any{w.status, w.reason}), "%s: %s", w.kind, got.Message)
			g.Expect(got.Message).To(ContainSubstring(w.message))
		}
		result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Status).To(Equal(conclusion), "%v", conditions.Status.Conditions)
	}).Should(Succeed())
	return o
}
