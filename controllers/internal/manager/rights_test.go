package manager_test

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// homes are the namespaces of the two operators, by account.
var homes = map[string]string{operatortest.Account: "outbox-system", namespacedAccount: namespacedHome}

var _ = Describe("rights on Secrets", Label("rights", "security", "namespaced"), func() {
	// Whoever takes over the operator can read no Secret, and do nothing else with one: not in the whole cluster, not in
	// a namespace that is served, not in its own.
	//
	// CONTRACT: C-103
	It("are none", func(ctx SpecContext) {
		for account, home := range homes {
			Expect(may(ctx, account, "list", "", "pods", "team-a")).To(BeTrue(), "%s has its rights", account)
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
				for _, namespace := range []string{"", "team-a", "team-c", home} { // "" is all of them
					Expect(may(ctx, account, verb, "", "secrets", namespace)).To(BeFalse(), "%s may %s secrets in %q", account, verb, namespace)
				}
			}
		}
	})
})

// may reports whether the operator has a right.
func may(ctx context.Context, account, verb, group, resource, namespace string) bool {
	GinkgoHelper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               account,
		Groups:             []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group, Resource: resource},
	}}
	Expect(admin.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// namespacedAccount is the operator of config/namespaced, in a namespace of its own: that of config/default has
// rights in the whole cluster on this API server.
const (
	namespacedHome    = "outbox-namespaced"
	namespacedAccount = "system:serviceaccount:" + namespacedHome + ":outbox-operator"
)

// installNamespaced applies config/namespaced. It makes team-a and team-b, which are served, and team-c.
func installNamespaced(ctx context.Context) {
	GinkgoHelper()
	for _, name := range []string{"team-a", "team-b", "team-c"} {
		Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	root, err := envtest.Root()
	Expect(err).NotTo(HaveOccurred())
	manifests, err := envtest.Kubectl(GinkgoTB(), "", "kustomize", filepath.Join(root, "config", "namespaced"))
	Expect(err).NotTo(HaveOccurred())
	_, err = envtest.Kubectl(GinkgoTB(), strings.ReplaceAll(manifests, "outbox-system", namespacedHome), "apply", "--server-side", "--force-conflicts", "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}

var _ = Describe("the operator of config/namespaced", Label("namespaced", "rights", "security"), func() {
	// With the Roles of config/namespaced alone the operator serves its namespaces, and requests nothing outside them.
	It("serves its namespaces, and requests nothing outside them", func(ctx SpecContext) {
		var mu sync.Mutex
		var outside, refused []string
		cfg := operatortest.As(GinkgoTB(), namespacedAccount, func(req *http.Request, resp *http.Response) {
			if _, _, ok := parse(req.URL.Path); !ok {
				return // discovery
			}
			mu.Lock()
			defer mu.Unlock()
			if resp.StatusCode == http.StatusForbidden {
				refused = append(refused, req.Method+" "+req.URL.Path)
			}
			served := slices.ContainsFunc([]string{"team-a", "team-b", namespacedHome}, func(name string) bool {
				return strings.Contains(req.URL.Path+"/", "/namespaces/"+name+"/")
			})
			if !served {
				outside = append(outside, req.Method+" "+req.URL.Path)
			}
		})
		metrics := envtest.FreeAddress(GinkgoTB())
		_, stop := operate(ctx, cfg, manager.Options{
			Pod: managerPod(ctx, namespacedHome), WatchNamespaces: []string{"team-a", "team-b"}, LeaderElect: true, LeaderNamespace: namespacedHome,
			MetricsAddress: metrics, MetricsInsecure: true,
		})
		image := ""
		deployment := func(namespace string) error {
			d := &appsv1.Deployment{}
			err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "orders-dispatcher"}, d)
			if err == nil {
				image = d.Spec.Template.Spec.Containers[0].Image
			}
			return err
		}
		for _, namespace := range []string{"team-c", "team-a", "team-b"} {
			for _, o := range orders(namespace) {
				Expect(admin.Create(ctx, o)).To(Succeed())
			}
		}
		for _, namespace := range []string{"team-a", "team-b"} {
			Eventually(func() error { return deployment(namespace) }).Should(Succeed(), namespace)
			Expect(image).To(Equal(managerImage), "dispatchers run the manager's own image")
		}
		Expect(apierrors.IsNotFound(deployment("team-c"))).To(BeTrue(), "team-c is not served")
		Eventually(get).WithArguments(ctx, "http://"+metrics+"/metrics", "").Should(Equal(http.StatusOK))
		stop()
		Expect(refused).To(BeEmpty(), "used and not granted")
		Expect(outside).To(BeEmpty(), "requests outside the namespaces")

		// A Role that may get namespaces may get the one that it is in.
		operator, err := client.New(operatortest.As(GinkgoTB(), namespacedAccount, unseen), client.Options{})
		Expect(err).NotTo(HaveOccurred())
		Expect(operator.Get(ctx, client.ObjectKey{Name: "team-a"}, &corev1.Namespace{})).To(Succeed())
		Expect(apierrors.IsForbidden(operator.Get(ctx, client.ObjectKey{Name: "team-c"}, &corev1.Namespace{}))).To(BeTrue())
	})
})

// orders are a plain OutboxDispatcher and the Secret that it names.
func orders(namespace string) []client.Object {
	return []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: namespace}, StringData: map[string]string{"dsn": "postgres://db"}},
		&v1alpha1.OutboxDispatcher{
			ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: namespace},
			Spec: spec.Dispatcher{
				Namespace: "shop",
				Database:  &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}},
				Sink:      spec.Sink{Log: &spec.LogSink{}},
			},
		},
	}
}

var _ = Describe("an operator of the whole cluster", Label("namespaced"), func() {
	// It leaves to other operators what they serve, and hears nothing of it. CONTRACT: C-106
	It("leaves out the namespaces that it is to ignore", func(ctx SpecContext) {
		var mu sync.Mutex
		var others []string
		_, stop := operate(ctx, operatortest.Operator(GinkgoTB(), func(req *http.Request, _ *http.Response) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(req.URL.Path, "/namespaces/ignored") {
				others = append(others, req.Method+" "+req.URL.Path)
			}
		}), manager.Options{IgnoreNamespaces: []string{"ignored", "ignored-too"}})
		for _, name := range []string{"ignored", "ignored-too", "served"} { // the last one last
			Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
			for _, o := range orders(name) {
				Expect(admin.Create(ctx, o)).To(Succeed())
			}
		}
		deployment := func(namespace string) error {
			return admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "orders-dispatcher"}, &appsv1.Deployment{})
		}
		Eventually(func() error { return deployment("served") }).Should(Succeed())
		stop()
		Expect(apierrors.IsNotFound(deployment("ignored"))).To(BeTrue())
		Expect(apierrors.IsNotFound(deployment("ignored-too"))).To(BeTrue())
		Expect(others).To(BeEmpty())
	})
})
