package manager_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var _ = Describe("the rights of config/rbac", Label("rights", "security"), func() {
	// The operator runs with the rights of config/rbac alone, goes through all that it ever does, and
	// uses every verb that it has.
	It("are enough and none too many", func(ctx SpecContext) {
		granted := operatortest.Granted(GinkgoTB())
		used := &usedVerbs{verbs: map[string]bool{}}
		metrics, probes := envtest.FreeAddress(GinkgoTB()), envtest.FreeAddress(GinkgoTB())
		_, stop := operate(ctx, operatortest.Operator(GinkgoTB(), used.record), manager.Options{
			Pod: managerPod(ctx, "outbox-system"), LeaderElect: true, OperatorNamespace: "outbox-system", LeaderNamespace: "outbox-system",
			MetricsAddress: metrics, ProbeAddress: probes,
		})
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		Expect(admin.Create(ctx, namespace)).To(Succeed())
		exercise(ctx, client.NewNamespacedClient(admin, namespace.Name))
		exerciseReplay(ctx, client.NewNamespacedClient(admin, namespace.Name))
		exerciseConsumer(ctx, client.NewNamespacedClient(admin, namespace.Name))
		exerciseServers(ctx, admin, namespace.Name, metrics, probes)
		Eventually(func() []string { return used.missing(granted) }).Should(BeEmpty(), "granted and never used")
		stop()
		Expect(used.refusals()).To(BeEmpty(), "used and not granted")
	})
})

// large is a pod template of which a spec has more than the cache keeps, so that the object is read again.
var large = json.RawMessage(`{"metadata":{"annotations":{"example.com/large":"` + strings.Repeat("x", 5000) + `"}}}`)

// exercise makes an Outbox, and takes an OutboxDispatcher through two migrations, a missing key, a pause and a rollout.
func exercise(ctx context.Context, admin client.Client) {
	obd := &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Name: "orders"},
		Spec: spec.Dispatcher{
			Namespace: "shop",
			Pods:      spec.Pods{Template: large},
			Database:  &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}, MigrationSecretRef: &spec.SecretRef{Name: "owner"}},
			Sink:      spec.Sink{Log: &spec.LogSink{}},
		},
	}
	outbox := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: spec.Outbox{SecretRef: spec.SecretRef{Name: "db"}}}
	Expect(admin.Create(ctx, outbox)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(outbox), outbox)).To(Succeed())
		g.Expect(outbox.Status.Conditions).NotTo(BeEmpty())
	}).Should(Succeed())
	Expect(admin.Create(ctx, obd)).To(Succeed())
	first := finishMigration(ctx, admin, "")
	deployment := &appsv1.Deployment{}
	Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Name: "orders-dispatcher"}, deployment)
	}).Should(Succeed())

	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: deployment.Name + "-x", Labels: deployment.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: deployment.Spec.Selector, Template: *deployment.Spec.Template.DeepCopy()},
	}
	Expect(admin.Create(ctx, set)).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name, pod.Labels["pod-template-hash"], pod.Spec.ServiceAccountName, pod.Spec.NodeName = "pod", "x", "", "node"
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	Expect(admin.Create(ctx, pod)).To(Succeed())
	for range 2 { // an event that comes again must not need a right to patch
		words := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "pod-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Reason:         "FailedMount", Message: "references non-existent secret key: dsn", LastTimestamp: metav1.Now(),
		}
		Expect(admin.Create(ctx, words)).To(Succeed())
		reason(ctx, admin, obd, v1alpha1.ReasonSecretKeyNotFound)
		Expect(admin.Delete(ctx, words)).To(Succeed())
		reason(ctx, admin, obd, v1alpha1.ReasonNotObserved)
	}
	change(ctx, admin, obd, func() { obd.Spec.State = spec.Paused })
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Annotations).To(HaveKeyWithValue(desired.AnnotationState, "Paused"))
	}).Should(Succeed())
	before := desired.ConfigNames(&deployment.Spec.Template.Spec)
	change(ctx, admin, obd, func() { obd.Spec.Database.Schema = "other" }) // a migration, and then a rollout
	finishMigration(ctx, admin, first)
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		g.Expect(desired.ConfigNames(&deployment.Spec.Template.Spec)).NotTo(Equal(before))
		deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: 1, UpdatedReplicas: 1}
		g.Expect(admin.Status().Update(ctx, deployment)).To(Succeed())
	}).Should(Succeed())
}

// exerciseReplay takes a DeadLetterReplay from its beginning to its deletion, when its time is over.
func exerciseReplay(ctx context.Context, admin client.Client) {
	outbox := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "replays"}, Spec: spec.Outbox{
		SecretRef: spec.SecretRef{Name: "db"}, ReplayLogin: &spec.ReplayLogin{SecretRef: &spec.SecretRef{Name: "replay"}, PodTemplate: large}}}
	var ids []string
	for range 200 { // more than the cache keeps
		ids = append(ids, uuid.NewString())
	}
	replay := &v1alpha1.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "replay"}, Spec: spec.Replay{
		OutboxRef: &spec.OutboxRef{Name: "replays"}, Namespace: "shop", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "admin",
		Selector: spec.DeadLetterSelector{IDs: ids}, TTLAfterFinished: new(spec.Duration),
	}}
	Expect(admin.Create(ctx, outbox)).To(Succeed())
	Expect(admin.Create(ctx, replay)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(replay), replay)).To(Succeed())
		g.Expect(replay.Status.Conditions).NotTo(BeEmpty())
		replay.Status.Progress = &status.Progress{FinishedAt: status.At(time.Now())}
		g.Expect(admin.Status().Update(ctx, replay)).To(Succeed())
	}).Should(Succeed())
	Eventually(func() bool { return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(replay), replay)) }).Should(BeTrue())
}

// exerciseConsumer registers a consumer.
func exerciseConsumer(ctx context.Context, admin client.Client) {
	o := &v1alpha1.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing"}, Spec: v1alpha1.OutboxConsumerSpec{
		EventTypes: []string{"*"}, OwnerTeam: "team-billing", IdempotencyMechanism: v1alpha1.IdempotencyUniqueKey}}
	Expect(admin.Create(ctx, o)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		g.Expect(o.Status.Conditions).NotTo(BeEmpty())
	}).Should(Succeed())
}

func change(ctx context.Context, admin client.Client, obd *v1alpha1.OutboxDispatcher, set func()) {
	Eventually(func() error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(obd), obd); err != nil {
			return err
		}
		set()
		return admin.Update(ctx, obd)
	}).Should(Succeed())
}

func reason(ctx context.Context, admin client.Client, obd *v1alpha1.OutboxDispatcher, want string) {
	Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
		g.Expect(obd.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1alpha1.ReferencesResolvedCondition), HaveField("Reason", want))))
	}).Should(Succeed())
}

// finishMigration lets the only Job succeed that is not the one named, and returns its name.
func finishMigration(ctx context.Context, admin client.Client, not string) string {
	var jobs batchv1.JobList
	Eventually(func(g Gomega) {
		g.Expect(admin.List(ctx, &jobs)).To(Succeed())
		g.Expect(jobs.Items).To(HaveLen(1))
		g.Expect(jobs.Items[0].Name).NotTo(Equal(not))
	}).Should(Succeed())
	succeed(ctx, admin, &jobs.Items[0])
	return jobs.Items[0].Name
}

// succeed lets a Job succeed, unless it has ended.
func succeed(ctx context.Context, admin client.Client, job *batchv1.Job) {
	if job.Status.CompletionTime != nil {
		return
	}
	now := metav1.Now()
	job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
	for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	Expect(admin.Status().Update(ctx, job)).To(Succeed())
}

// exerciseServers requests metrics without and with the right to read them, and health.
func exerciseServers(ctx context.Context, admin client.Client, namespace, metrics, probes string) {
	token := func(account string) string {
		sa, request := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace}}, &authenticationv1.TokenRequest{}
		Expect(admin.Create(ctx, sa)).To(Succeed())
		Expect(admin.SubResource("token").Create(ctx, sa, request)).To(Succeed())
		return request.Status.Token
	}
	responds := func(url, bearer string, code int) {
		GinkgoHelper()
		Eventually(get).WithArguments(ctx, url, bearer).Should(Equal(code))
	}
	responds("http://"+probes+"/healthz", "", http.StatusOK)
	responds("http://"+probes+"/readyz", "", http.StatusOK)
	responds("https://"+metrics+"/metrics", "", http.StatusUnauthorized)
	responds("https://"+metrics+"/metrics", token("unprivileged"), http.StatusForbidden)
	Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "prometheus-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "outbox-operator-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "prometheus", Namespace: namespace}},
	})).To(Succeed())
	responds("https://"+metrics+"/metrics", token("prometheus"), http.StatusOK)
}

// get is the status that a URL responds with, whoever signed its certificate; 0 when it does not respond.
func get(ctx context.Context, url, bearer string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	Expect(err).NotTo(HaveOccurred())
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := insecure.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// operate runs an operator until stop is called, which fails the spec when it did not end well, or until the spec ends.
func operate(ctx context.Context, cfg *rest.Config, o manager.Options) (ended chan error, stop func()) {
	GinkgoHelper()
	o.ObserveInterval, o.MetricsAddress, o.ProbeAddress = 100*time.Millisecond, cmp.Or(o.MetricsAddress, "0"), cmp.Or(o.ProbeAddress, "0")
	if o.Pod.Name == "" {
		o.DispatcherImage = "outbox-operator:v1"
	}
	running, cancel := context.WithCancel(ctx)
	mgr, err := manager.New(running, cfg, o)
	Expect(err).NotTo(HaveOccurred())
	ended, gone := make(chan error, 1), make(chan struct{})
	go func() { defer close(gone); ended <- mgr.Start(running) }()
	DeferCleanup(func() { cancel(); <-gone })
	return ended, func() {
		GinkgoHelper()
		cancel()
		Expect(<-ended).To(Succeed())
	}
}

// unseen is for an operator whose requests a spec does not look at.
func unseen(*http.Request, *http.Response) {}

func TestOptionsThatCannotWork(t *testing.T) {
	for want, o := range map[string]manager.Options{
		"--observe-interval":  {DispatcherImage: "image"},
		"--watch-namespaces":  {DispatcherImage: "image", ObserveInterval: time.Second, WatchNamespaces: []string{"team-a", "Team B"}},
		"--inherited-labels":  {DispatcherImage: "image", ObserveInterval: time.Second, InheritedLabels: []string{"team", "outbox.dev/dispatcher"}},
		"--ignore-namespaces": {DispatcherImage: "image", ObserveInterval: time.Second, WatchNamespaces: []string{"team-a"}, IgnoreNamespaces: []string{"team-b"}},
	} {
		_, err := manager.New(t.Context(), &rest.Config{}, o)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "New(%+v): %v, want an error that names %s", o, err, want)
	}
}

// usedVerbs records the operator's requests to the API server.
type usedVerbs struct {
	mu      sync.Mutex
	verbs   map[string]bool
	refused []string
}

func (u *usedVerbs) record(req *http.Request, resp *http.Response) {
	resource, named, ok := parse(req.URL.Path)
	if !ok {
		return
	}
	verbs := map[string][]string{
		http.MethodGet:    {"list"},
		http.MethodPost:   {"create"},
		http.MethodPut:    {"update"},
		http.MethodPatch:  {"patch"},
		http.MethodDelete: {"delete"},
	}[req.Method]
	switch query := req.URL.Query(); {
	case query.Has("sendInitialEvents"): // if it could not stream, the client would request a list
		verbs = []string{"list", "watch"}
	case query.Has("watch"):
		verbs = []string{"watch"}
	case req.Method == http.MethodGet && named:
		verbs = []string{"get"}
	case req.Method == http.MethodPatch && resp.StatusCode == http.StatusCreated: // an apply that creates needs both
		verbs = []string{"patch", "create"}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, verb := range verbs {
		u.verbs[resource+" "+verb] = true
	}
	if resp.StatusCode == http.StatusForbidden {
		u.refused = append(u.refused, req.Method+" "+req.URL.Path)
	}
}

// parse takes group/resource, with a subresource, from a path, and whether it names an object.
func parse(path string) (resource string, named, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	default:
		return "", false, false // discovery
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource = group + "/" + parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return resource, len(parts) > 1, true
}

func (u *usedVerbs) missing(granted []string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	unused := slices.DeleteFunc(slices.Clone(granted), func(g string) bool { return u.verbs[g] })
	slices.Sort(unused)
	return unused
}

func (u *usedVerbs) refusals() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.refused)
}

const managerImage = "registry.example.com/outbox-operator:v1"

// managerPod makes the manager's own pod, with a proxy before the manager, as a mesh puts one there.
func managerPod(ctx context.Context, namespace string) client.ObjectKey {
	GinkgoHelper()
	restricted := &corev1.SecurityContext{
		RunAsNonRoot: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "outbox-operator-", Namespace: namespace},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "proxy", Image: "proxy:v1", SecurityContext: restricted},
			{Name: "manager", Image: managerImage, SecurityContext: restricted},
		}},
	}
	Expect(admin.Create(ctx, pod)).To(Succeed())
	return client.ObjectKeyFromObject(pod)
}

var _ = Describe("the manager's own image", Label("rights"), func() {
	DescribeTable("is needed when no other is set", func(ctx SpecContext, pod, want string) {
		other := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "other-", Namespace: "team-a"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}},
		}
		Expect(admin.Create(ctx, other)).To(Succeed())
		if pod == "other" {
			pod = other.Name
		}
		_, err := manager.New(ctx, envtest.Start(GinkgoTB()), manager.Options{Pod: client.ObjectKey{Namespace: "team-a", Name: pod}, ObserveInterval: time.Second, MetricsAddress: "0", ProbeAddress: "0"})
		Expect(err).To(MatchError(And(ContainSubstring(want), ContainSubstring("set --dispatcher-image, or POD_NAME"))))
	},
		Entry("and the pod is not there", "none", `"none" not found`),
		Entry("and the pod has another container", "other", `no container "manager"`),
		Entry("and the pod's name is not known", "", "POD_NAME"),
	)
})

var _ = Describe("a definition that is missing", Label("rights"), Serial, func() {
	It("keeps that kind alone from being reconciled, until it is there", func(ctx SpecContext) {
		definition := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		key := client.ObjectKey{Name: "outboxconsumers.outbox.dev"}
		Expect(admin.Get(ctx, key, definition)).To(Succeed())
		Expect(admin.Delete(ctx, definition.DeepCopy())).To(Succeed())
		serves := func() error { // by a client that remembers nothing
			_, err := operatortest.Admin(GinkgoTB()).RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("OutboxConsumer").GroupKind(), "v1alpha1")
			return err
		}
		Eventually(serves).ShouldNot(Succeed())
		restore := func(ctx context.Context) error {
			again := definition.DeepCopy()
			again.SetResourceVersion("")
			again.SetUID("")
			unstructured.RemoveNestedField(again.Object, "status")
			return client.IgnoreAlreadyExists(admin.Create(ctx, again))
		}
		DeferCleanup(func(ctx SpecContext) {
			Expect(restore(ctx)).To(Succeed())
			Eventually(serves).Should(Succeed())
		})

		ended, _ := operate(ctx, operatortest.Operator(GinkgoTB(), unseen), manager.Options{})
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		Expect(admin.Create(ctx, namespace)).To(Succeed())
		for _, o := range orders(namespace.Name) {
			Expect(admin.Create(ctx, o)).To(Succeed())
		}
		Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "orders-dispatcher"}, &appsv1.Deployment{})
		}).Should(Succeed())
		Expect(ended).NotTo(Receive())

		Expect(restore(ctx)).To(Succeed())
		Eventually(ended).Should(Receive(MatchError(ContainSubstring("the definition of OutboxConsumer, which was missing, is there now"))))
	})
})

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var _ = Describe("/readyz", Label("rights"), func() {
	It("is not ok until the caches are filled", func(ctx SpecContext) {
		released := make(chan struct{})
		cfg := operatortest.Operator(GinkgoTB(), unseen)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if strings.HasSuffix(req.URL.Path, "/outboxdispatchers") {
					<-released
				}
				return next.RoundTrip(req)
			})
		})
		probes := envtest.FreeAddress(GinkgoTB())
		_, stop := operate(ctx, cfg, manager.Options{ProbeAddress: probes})
		Eventually(get).WithArguments(ctx, "http://"+probes+"/healthz", "").Should(Equal(http.StatusOK))
		Expect(get(ctx, "http://"+probes+"/readyz", "")).To(Equal(http.StatusInternalServerError))
		close(released)
		Eventually(get).WithArguments(ctx, "http://"+probes+"/readyz", "").Should(Equal(http.StatusOK))
		stop()
	})
})

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./controllers/internal/manager -ginkgo.label-filter=namespaced`.
func TestOnTheAPIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	RegisterFailHandler(Fail)
	RunSpecs(t, "the operator's rights on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

// The API server needs a moment to apply roles that were just made; the operator sends no request before.
var _ = BeforeSuite(func(ctx SpecContext) {
	admin = operatortest.Admin(GinkgoTB())
	operatortest.Granted(GinkgoTB())
	installNamespaced(ctx)
	for account, namespaces := range map[string][]string{operatortest.Account: {"team-c"}, namespacedAccount: {"team-a", "team-b"}} {
		for _, namespace := range namespaces {
			Eventually(may).WithArguments(ctx, account, "list", "", "pods", namespace).Should(BeTrue(), "%s in %s", account, namespace)
		}
	}
	for account, home := range homes {
		Eventually(may).WithArguments(ctx, account, "create", "coordination.k8s.io", "leases", home).Should(BeTrue(), "%s in %s", account, home)
	}
})
