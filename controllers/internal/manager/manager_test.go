package manager_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/envtest"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(20 * time.Second)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	envtest.Main(m)
}

// The operator runs with the rights of config/rbac alone, goes through all that it ever does, and
// uses every verb that it has.
func TestRightsAreEnoughAndNoneTooMany(t *testing.T) {
	g := NewWithT(t)
	admin, granted := operatortest.Admin(t), operatortest.Granted(t)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "outbox-operator.outbox.dev", Namespace: "outbox-system"}}
	g.Expect(client.IgnoreNotFound(admin.Delete(t.Context(), lease))).To(Succeed()) // of an earlier run: nobody has led yet
	used := &usedVerbs{verbs: map[string]bool{}}
	metrics, probes := freeAddress(t), freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	mgr, err := manager.New(ctx, operatortest.Operator(t, used.record), manager.Options{
		DispatcherImage: "outbox-operator:v1",
		ObserveInterval: 100 * time.Millisecond,
		LeaderElect:     true,

		OperatorNamespace: "outbox-system",
		LeaderNamespace:   "outbox-system",
		MetricsAddress:    metrics,
		ProbeAddress:      probes,
	})
	g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	g.Expect(admin.Create(t.Context(), namespace)).To(Succeed())
	exercise(g, t.Context(), client.NewNamespacedClient(admin, namespace.Name))
	exerciseServers(g, t.Context(), admin, namespace.Name, metrics, probes)
	g.Eventually(func() []string { return used.missing(granted) }).Should(BeEmpty(), "granted and never used")
	cancel()
	g.Expect(<-ended).To(Succeed())
	g.Expect(used.refusals()).To(BeEmpty(), "used and not granted")
}

// exercise makes an Outbox, and takes an OutboxDispatcher through two migrations, a missing key, a pause and a rollout.
func exercise(g *WithT, ctx context.Context, admin client.Client) {
	obd := &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Name: "orders"},
		Spec: v1alpha1.OutboxDispatcherSpec{
			Namespace: "shop",
			Database:  &v1alpha1.OutboxSpec{Secret: v1alpha1.DatabaseSecret{Name: "db"}, Migration: &v1alpha1.Migration{}},
			Sink:      v1alpha1.Sink{Log: &v1alpha1.LogSink{}},
		},
	}
	outbox := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1alpha1.OutboxSpec{Secret: v1alpha1.DatabaseSecret{Name: "db"}}}
	g.Expect(admin.Create(ctx, outbox)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(outbox), outbox)).To(Succeed())
		g.Expect(outbox.Status.Conditions).NotTo(BeEmpty())
	}).Should(Succeed())
	g.Expect(admin.Create(ctx, obd)).To(Succeed())
	first := finishMigration(g, ctx, admin, "")
	deployment := &appsv1.Deployment{}
	g.Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Name: "orders-dispatcher"}, deployment)
	}).Should(Succeed())

	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: deployment.Name + "-x", Labels: deployment.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: deployment.Spec.Selector, Template: *deployment.Spec.Template.DeepCopy()},
	}
	g.Expect(admin.Create(ctx, set)).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name, pod.Labels["pod-template-hash"], pod.Spec.ServiceAccountName, pod.Spec.NodeName = "pod", "x", "", "node"
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	g.Expect(admin.Create(ctx, pod)).To(Succeed())
	for range 2 { // an event that comes again must not need a right to patch
		words := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "pod-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Reason:         "FailedMount", Message: "references non-existent secret key: dsn", LastTimestamp: metav1.Now(),
		}
		g.Expect(admin.Create(ctx, words)).To(Succeed())
		reason(g, ctx, admin, obd, v1alpha1.ReasonSecretKeyNotFound)
		g.Expect(admin.Delete(ctx, words)).To(Succeed())
		reason(g, ctx, admin, obd, v1alpha1.ReasonNotObserved)
	}
	change(g, ctx, admin, obd, func() { obd.Spec.State = v1alpha1.StatePaused })
	g.Eventually(func() map[string]string {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		return pod.Annotations
	}).Should(HaveKeyWithValue(desired.AnnotationState, "Paused"))
	before := deployment.Generation
	change(g, ctx, admin, obd, func() { obd.Spec.Database.Schema = "other" }) // a migration, and then a rollout
	finishMigration(g, ctx, admin, first)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		g.Expect(deployment.Generation).To(BeNumerically(">", before))
	}).Should(Succeed())
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: 1, UpdatedReplicas: 1}
	g.Expect(admin.Status().Update(ctx, deployment)).To(Succeed())
}

func change(g *WithT, ctx context.Context, admin client.Client, obd *v1alpha1.OutboxDispatcher, set func()) {
	g.Eventually(func() error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(obd), obd); err != nil {
			return err
		}
		set()
		return admin.Update(ctx, obd)
	}).Should(Succeed())
}

func reason(g *WithT, ctx context.Context, admin client.Client, obd *v1alpha1.OutboxDispatcher, want string) {
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
		g.Expect(obd.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1alpha1.ReferencesResolvedCondition), HaveField("Reason", want))))
	}).Should(Succeed())
}

// finishMigration lets the only Job succeed that is not the one named, and returns its name.
func finishMigration(g *WithT, ctx context.Context, admin client.Client, not string) string {
	var jobs batchv1.JobList
	g.Eventually(func(g Gomega) {
		g.Expect(admin.List(ctx, &jobs)).To(Succeed())
		g.Expect(jobs.Items).To(HaveLen(1))
		g.Expect(jobs.Items[0].Name).NotTo(Equal(not))
	}).Should(Succeed())
	job, now := &jobs.Items[0], metav1.Now()
	if job.Status.CompletionTime == nil {
		job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		g.Expect(admin.Status().Update(ctx, job)).To(Succeed())
	}
	return job.Name
}

// exerciseServers asks for metrics without and with the right to, and for health.
func exerciseServers(g *WithT, ctx context.Context, admin client.Client, namespace, metrics, probes string) {
	token := func(account string) string {
		sa, request := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace}}, &authenticationv1.TokenRequest{}
		g.Expect(admin.Create(ctx, sa)).To(Succeed())
		g.Expect(admin.SubResource("token").Create(ctx, sa, request)).To(Succeed())
		return request.Status.Token
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(url, bearer string) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		g.Expect(err).NotTo(HaveOccurred())
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := insecure.Do(req)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	g.Eventually(func() int { return get("http://"+probes+"/healthz", "") }).Should(Equal(http.StatusOK))
	g.Eventually(func() int { return get("http://"+probes+"/readyz", "") }).Should(Equal(http.StatusOK))
	g.Eventually(func() int { return get("https://"+metrics+"/metrics", "") }).Should(Equal(http.StatusUnauthorized))
	g.Expect(get("https://"+metrics+"/metrics", token("nobody"))).To(Equal(http.StatusForbidden))
	g.Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "prometheus-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "outbox-operator-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "prometheus", Namespace: namespace}},
	})).To(Succeed())
	prometheus := token("prometheus")
	g.Eventually(func() int { return get("https://"+metrics+"/metrics", prometheus) }).Should(Equal(http.StatusOK))
}

func TestOptionsThatCannotWork(t *testing.T) {
	for want, o := range map[string]manager.Options{
		"--dispatcher-image": {ObserveInterval: time.Second},
		"--observe-interval": {DispatcherImage: "image"},
		"--watch-namespaces": {DispatcherImage: "image", ObserveInterval: time.Second, WatchNamespaces: []string{"team-a", "Team B"}},
	} {
		if _, err := manager.New(t.Context(), &rest.Config{}, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want an error that names %s", o, err, want)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// usedVerbs records what the operator asks of the API server.
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
	case query.Has("sendInitialEvents"): // an API server that cannot stream would be asked for a list
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
