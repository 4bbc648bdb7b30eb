// Package operatortest lets tests run the operator with the rights that config/rbac gives it, and no
// others.
package operatortest

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Account is the operator's user name, with the rights of config/rbac.
const Account = "system:serviceaccount:outbox-system:outbox-operator"

// Admin returns a client that may do everything and reads from the API server.
func Admin(t testing.TB) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	need.OK(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	c, err := client.New(envtest.Start(t), client.Options{Scheme: scheme})
	need.OK(t, err)
	return c
}

// Operator returns the operator's way to the API server. It calls record with each request and its
// outcome.
func Operator(t testing.TB, record func(*http.Request, *http.Response)) *rest.Config {
	t.Helper()
	Granted(t)
	return As(t, Account, record)
}

// As is Operator for another user, whose rights the test has granted.
func As(t testing.TB, user string, record func(*http.Request, *http.Response)) *rest.Config {
	t.Helper()
	cfg := envtest.Start(t)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user}
	cfg.QPS = -1
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil {
				record(req, resp)
			}
			return resp, err
		})
	})
	return cfg
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var granted struct {
	once   sync.Once
	rights []string
}

// Granted applies config/rbac, once for a process, and returns what the operator may do there, as
// "group/resource verb".
func Granted(t testing.TB) []string {
	t.Helper()
	granted.once.Do(func() {
		admin := Admin(t)
		objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "outbox-system"}}}
		objects = append(objects, read(t)...)
		for _, o := range objects {
			if err := admin.Create(t.Context(), o); err != nil {
				t.Fatalf("create %T %s: %v", o, o.GetName(), err)
			}
		}
		granted.rights = rights(objects)
	})
	if len(granted.rights) == 0 {
		t.Fatal("config/rbac grants the operator nothing")
	}
	return granted.rights
}

// read decodes the files of config/rbac.
func read(t testing.TB) []client.Object {
	t.Helper()
	root, err := envtest.Root()
	need.OK(t, err)
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", "*.yaml"))
	need.OK(t, err)
	var objects []client.Object
	for _, file := range files {
		text, err := os.ReadFile(file)
		need.OK(t, err)
		for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(string(text)), 4096); ; {
			var raw runtime.RawExtension
			if decoder.Decode(&raw) != nil {
				break
			}
			o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(raw.Raw, nil, nil)
			if runtime.IsMissingKind(err) || runtime.IsNotRegisteredError(err) {
				continue // the kustomization
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			objects = append(objects, o.(client.Object))
		}
	}
	return objects
}

// rights of the roles that are bound to the operator's account.
func rights(objects []client.Object) []string {
	rules, bound := map[string][]rbacv1.PolicyRule{}, map[string]bool{}
	bind := func(ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			if s.Kind == rbacv1.ServiceAccountKind && "system:serviceaccount:"+s.Namespace+":"+s.Name == Account {
				bound[ref.Kind+"/"+ref.Name] = true
			}
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			rules["ClusterRole/"+o.Name] = o.Rules
		case *rbacv1.Role:
			rules["Role/"+o.Name] = o.Rules
		case *rbacv1.ClusterRoleBinding:
			bind(o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			bind(o.RoleRef, o.Subjects)
		}
	}
	var rights []string
	for role := range bound {
		for _, rule := range rules[role] {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights = append(rights, group+"/"+resource+" "+verb)
					}
				}
			}
		}
	}
	return rights
}

// CheckConditions fails the test unless all conditions of want, each as Type=Status/Reason or with ": " and the message, are among got, and none of
// the types of absent. Each condition of got needs a message.
func CheckConditions(t testing.TB, got []metav1.Condition, want, absent []string) {
	t.Helper()
	for _, one := range want {
		if !slices.ContainsFunc(got, func(c metav1.Condition) bool {
			is := c.Type + "=" + string(c.Status) + "/" + c.Reason
			return one == is || one == is+": "+c.Message
		}) {
			t.Errorf("want %s in %+v", one, got)
		}
	}
	for _, one := range absent {
		if meta.FindStatusCondition(got, one) != nil {
			t.Errorf("want no %s in %+v", one, got)
		}
	}
	for _, c := range got {
		if c.Message == "" {
			t.Errorf("%s=%s/%s has no message", c.Type, c.Status, c.Reason)
		}
	}
}
