package outboxdispatcher_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest/specs"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// The specs share an API server; each, or each ordered container, has a namespace and a manager of its own.
// Labels pick some: `go test ./controllers/outboxdispatcher -ginkgo.label-filter=stop`.
func TestOnTheAPIServer(t *testing.T) {
	specs.Run(t, "OutboxDispatchers on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

var _ = BeforeSuite(func() { admin = operatortest.Admin(GinkgoTB()) })

// cluster is a namespace with a manager of its own.
type cluster struct {
	*specs.Cluster
	ctx       context.Context
	admin     client.Client
	namespace string
	skew      atomic.Int64 // of the manager's clock, in nanoseconds
	stop      func()
	// image, operator (its namespace), inherited (labels), rolling, also (more namespaces) and resume are the next manager's; empty for what
	// others have.
	image     string
	operator  string
	inherited []string
	rolling   int
	also      []string
	resume    time.Duration
	leads     bool // by a Lease in its namespace
	released  time.Duration
}

// start starts a manager that looks at the pods every interval, after the changes of what it is given. It ends with the spec,
// or with the container when BeforeAll calls this.
func start(interval time.Duration, changes ...func(*cluster)) *cluster {
	GinkgoHelper()
	own := specs.NewCluster(admin)
	c := &cluster{Cluster: own, ctx: own.Ctx, admin: admin, namespace: own.Namespace}
	for _, change := range changes {
		change(c)
	}
	c.stop = c.run(interval)
	return c
}

// delivering starts a manager, and rolls out the plain OutboxDispatcher with the changes: all its pods deliver.
func delivering(interval time.Duration, changes ...func(*v1alpha1.OutboxDispatcher)) (*cluster, *v1alpha1.OutboxDispatcher) {
	GinkgoHelper()
	c := start(interval)
	return c, c.deliver(changes...)
}

func (c *cluster) deliver(changes ...func(*v1alpha1.OutboxDispatcher)) *v1alpha1.OutboxDispatcher {
	GinkgoHelper()
	obd := c.dispatcher()
	for _, change := range changes {
		change(obd)
	}
	c.create(obd)
	if obd.Spec.Database.MigrationSecretRef != nil {
		c.succeed()
	}
	c.rollOut(slices.Repeat([]status.Status{c.healthy()}, int(*obd.Spec.Replicas))...)
	c.expect(kstatus.CurrentStatus)
	return obd
}

// run starts a manager and stops it with the spec.
func (c *cluster) run(interval time.Duration) (stop func()) {
	GinkgoHelper()
	return c.Manage(manager.Options{
		DispatcherImage: c.image, Pod: client.ObjectKey{Namespace: c.operator}, InheritedLabels: c.inherited, MaxRollingUpgrades: c.rolling, ResumeWithin: c.resume, LeaderElect: c.leads, LeaderNamespace: c.operator, ReleasedLasts: c.released,
		ObserveInterval: interval, WatchNamespaces: c.also, Now: func() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) },
	})
}

// passes waits for n more passes after polls of pods.
func (c *cluster) passes(n int64) {
	GinkgoHelper()
	// The pass that runs now may have started before this call, so one more than n must begin.
	target := c.Pods.Polled() + n + 1
	Eventually(c.Pods.Polled).Should(BeNumerically(">=", target))
}

// settle waits until the manager has sent the API server no request during five passes, and returns how many
// requests there were. What may still be under way when a status is as expected, such as an Event, has arrived then.
func (c *cluster) settle() (requests int) {
	GinkgoHelper()
	Eventually(func() bool {
		requests = len(c.Requests.All())
		c.passes(5)
		return len(c.Requests.All()) == requests
	}).Should(BeTrue(), "there are always new requests")
	return requests
}

// dispatcher is a plain OutboxDispatcher.
func (c *cluster) dispatcher() *v1alpha1.OutboxDispatcher {
	return &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: c.namespace},
		Spec: spec.Dispatcher{
			Namespace: "shop",
			Database:  &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "orders-db"}},
			Sink:      spec.Sink{Log: &spec.LogSink{}},
		},
	}
}

// migrated is dispatcher with a migration Job.
func (c *cluster) migrated() *v1alpha1.OutboxDispatcher {
	obd := c.dispatcher()
	migrating(obd)
	return obd
}

func migrating(obd *v1alpha1.OutboxDispatcher) {
	obd.Spec.Database.MigrationSecretRef = &spec.SecretRef{Name: "orders-owner"}
}

func (c *cluster) create(objects ...client.Object) {
	GinkgoHelper()
	c.Create(objects...)
}

// edit changes an object, and retries after a conflict.
func edit[T client.Object](c *cluster, o T, change func(T)) {
	GinkgoHelper()
	specs.Edit(c.Cluster, o, change)
}

// editStatus is edit for the status.
func editStatus[T client.Object](c *cluster, o T, change func(T)) {
	GinkgoHelper()
	specs.EditStatus(c.Cluster, o, change)
}

// fetch waits until the object is there.
func fetch[T client.Object](c *cluster, o T, name string) T {
	GinkgoHelper()
	return specs.Fetch(c.Cluster, o, name)
}

func (c *cluster) deployment() *appsv1.Deployment {
	GinkgoHelper()
	return fetch(c, &appsv1.Deployment{}, "orders-dispatcher")
}

// job waits for the only migration Job.
func (c *cluster) job() *batchv1.Job {
	GinkgoHelper()
	Eventually(c.jobs).Should(HaveLen(1))
	return &c.jobs()[0]
}

// healthy is what a pod says when all is well.
func (c *cluster) healthy() status.Status {
	return status.Status{
		Name:    c.namespace + "/orders",
		State:   "Running",
		Source:  status.Link{State: status.Reachable},
		Schema:  status.Schema{State: "Ready", Version: 1, Required: 1},
		Sink:    status.Link{State: status.Reachable},
		Backlog: &status.Backlog{ObservedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},

		OldestTransaction: &status.OldestTransaction{},
	}
}

// get reads the OutboxDispatcher.
func (c *cluster) get() *v1alpha1.OutboxDispatcher {
	GinkgoHelper()
	return fetch(c, &v1alpha1.OutboxDispatcher{}, "orders")
}

// want is a condition: its type, status and reason, and a part of its message.
type want specs.Condition

// expect waits until the conditions are as wanted and kstatus comes to the conclusion.
func (c *cluster) expect(conclusion kstatus.Status, wants ...want) {
	GinkgoHelper()
	specs.Expect(c.Cluster, c.get(), conclusion, wants...)
}

func replicas(n int32) func(*v1alpha1.OutboxDispatcher) {
	return func(obd *v1alpha1.OutboxDispatcher) { obd.Spec.Replicas = ptr.To(n) }
}

// jobs are the migration Jobs.
func (c *cluster) jobs() []batchv1.Job {
	GinkgoHelper()
	var jobs batchv1.JobList
	Expect(c.admin.List(c.ctx, &jobs, client.InNamespace(c.namespace))).To(Succeed())
	return jobs.Items
}

// files is the ConfigMap that new pods read.
func (c *cluster) files() *corev1.ConfigMap {
	GinkgoHelper()
	return fetch(c, &corev1.ConfigMap{}, desired.ConfigNames(&c.deployment().Spec.Template.Spec)[0])
}

// configFile is the file in it.
func (c *cluster) configFile() string { return c.files().Data["config.yaml"] }

// state is the one in the pods' file.
func (c *cluster) state() string {
	return fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state").Data["state"]
}

// command is what the dispatchers' pods run.
func (c *cluster) command() []string {
	return c.deployment().Spec.Template.Spec.Containers[0].Command
}

func pdb(c *cluster) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher", Namespace: c.namespace}}
}

// expectEvent waits for an event about the OutboxDispatcher.
func (c *cluster) expectEvent(kind, reason, note string) {
	GinkgoHelper()
	c.ExpectEvent([2]string{"OutboxDispatcher", "orders"}, kind, reason, note)
}

// events are the notes of the events with the reason.
func (c *cluster) events(reason string) (notes []string) {
	GinkgoHelper()
	var events eventsv1.EventList
	Expect(c.admin.List(c.ctx, &events, client.InNamespace(c.namespace))).To(Succeed())
	for _, e := range events.Items {
		if e.Reason == reason {
			notes = append(notes, e.Note)
		}
	}
	return notes
}
