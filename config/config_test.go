// Package config_test applies the manifests to a real API server.
package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/hack/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

func TestDefaultIsAccepted(t *testing.T) {
	c := install(t)
	manager := &appsv1.Deployment{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "outbox-system", Name: "outbox-operator"}, manager); err != nil {
		t.Fatal(err)
	}
	container := manager.Spec.Template.Spec.Containers[0]

	t.Run("the manager's pod is admitted as restricted", func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: manager.Namespace, Name: "try", Labels: manager.Spec.Template.Labels},
			Spec:       manager.Spec.Template.Spec,
		}
		if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Error(err)
		}
	})
	t.Run("dispatchers run the manager's image", func(t *testing.T) {
		if want := "--dispatcher-image=" + container.Image; !slices.Contains(container.Args, want) {
			t.Errorf("arguments %q, without %q", container.Args, want)
		}
	})
	t.Run("the Service finds the manager", func(t *testing.T) {
		service := &corev1.Service{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "outbox-system", Name: "outbox-operator-metrics"}, service); err != nil {
			t.Fatal(err)
		}
		for key, value := range service.Spec.Selector {
			if manager.Spec.Template.Labels[key] != value {
				t.Errorf("the Service selects %s=%s, the pods have %q", key, value, manager.Spec.Template.Labels[key])
			}
		}
		if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == service.Spec.Ports[0].TargetPort.StrVal }) {
			t.Errorf("the Service's port is %v, the container's are %v", service.Spec.Ports[0].TargetPort, container.Ports)
		}
	})
}

// Whoever takes over the manager must not get further than this.
func TestManagerRoleIsSmall(t *testing.T) {
	c := install(t)
	role := &rbacv1.ClusterRole{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "outbox-operator"}, role); err != nil {
		t.Fatal(err)
	}
	read := []string{"get", "list", "watch"}
	for _, rule := range role.Rules {
		for _, words := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			if slices.Contains(words, "*") {
				t.Errorf("a rule says *: %v", rule)
			}
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				switch {
				case strings.HasPrefix(resource, "secrets"): // CONTRACT C-103
					t.Errorf("the manager may %s %s; it may do nothing with them", verb, resource)
				case strings.HasPrefix(resource, "pods/"), resource == "pods" && verb != "patch" && !slices.Contains(read, verb):
					t.Errorf("the manager may %s %s; it reads and annotates them", verb, resource)
				case resource == "outboxdispatchers" && !slices.Contains(read, verb):
					t.Errorf("the manager may %s %s; it only reads them", verb, resource)
				case verb == "delete" && resource != "jobs" && resource != "configmaps", verb == "deletecollection", verb == "escalate", verb == "bind", verb == "impersonate":
					t.Errorf("the manager may %s %s", verb, resource)
				}
			}
		}
	}
}

// Nobody who takes over the manager reads a Secret, wherever it is, also not those of leases. CONTRACT: C-103
func TestManagerMayDoNothingWithSecrets(t *testing.T) {
	c := install(t)
	for _, namespace := range []string{"", "default", "outbox-system"} {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:outbox-system:outbox-operator",
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:outbox-system", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: "secrets"},
			}}
			if err := c.Create(t.Context(), review); err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed {
				t.Errorf("the manager may %s Secrets in the namespace %q: %s", verb, namespace, review.Status.Reason)
			}
		}
	}
}

func TestOptionalParts(t *testing.T) {
	install(t)
	dir := manifests(t)
	if _, err := envtest.Kubectl(t, "", "apply", "--server-side", "--dry-run=server", "-k", filepath.Join(dir, "network-policy")); err != nil {
		t.Error(err)
	}
	out, err := envtest.Kubectl(t, "", "kustomize", filepath.Join(dir, "prometheus")) // its kinds are not installed
	if err != nil {
		t.Error(err)
	}
	for _, kind := range []string{"kind: ServiceMonitor", "kind: PodMonitor", "kind: PrometheusRule"} {
		if !strings.Contains(out, kind) {
			t.Errorf("config/prometheus has no %s", kind)
		}
	}
}

// The image is set in one place, as the comment in config/default says.
func TestOtherImage(t *testing.T) {
	for _, base := range []string{"default", "namespaced"} {
		dir := manifests(t)
		file := filepath.Join(dir, base, "kustomization.yaml")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, "images:\n- name: outbox-operator\n  newName: images.example.com:5000/outbox\n  newTag: v1\n"...)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := envtest.Kubectl(t, "", "kustomize", filepath.Join(dir, base))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"image: images.example.com:5000/outbox:v1\n", "- --dispatcher-image=images.example.com:5000/outbox:v1\n"} {
			if strings.Count(out, line) != 1 {
				t.Errorf("%s: %d times %q, want 1", base, strings.Count(out, line), line)
			}
		}
		if strings.Count(out, "images.example.com") != 2 {
			t.Errorf("%s: the image is written to more places than these", base)
		}
	}
}

// install applies config/default as the README says. Doing so again changes nothing.
func install(t *testing.T) client.Client {
	t.Helper()
	if _, err := envtest.Kubectl(t, "", "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(manifests(t), "default")); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(envtest.Start(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// manifests returns a copy of this directory. To copy is also to open: Go runs a test again only
// when a file has changed that the test itself opened, and does not see what kubectl opens.
func manifests(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	return dir
}
