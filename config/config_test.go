// Package config_test applies the manifests to a real API server.
package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/outboxdispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./config -ginkgo.label-filter=security`.
func TestOnTheAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the manifests on an API server")
}

var _ = Describe("config/default", Label("install"), Ordered, ContinueOnFailure, func() {
	var c client.Client
	var manager *appsv1.Deployment

	BeforeAll(func(ctx SpecContext) {
		c = install()
		manager = &appsv1.Deployment{}
		Expect(c.Get(ctx, client.ObjectKey{Namespace: "outbox-system", Name: "outbox-operator"}, manager)).To(Succeed())
	})

	It("has a manager's pod that is admitted as restricted", Label("security"), func(ctx SpecContext) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: manager.Namespace, Name: "try", Labels: manager.Spec.Template.Labels},
			Spec:       manager.Spec.Template.Spec,
		}
		Expect(c.Create(ctx, pod, client.DryRunAll)).To(Succeed())
	})

	It("has a Service that finds the manager", func(ctx SpecContext) {
		service := &corev1.Service{}
		Expect(c.Get(ctx, client.ObjectKey{Namespace: "outbox-system", Name: "outbox-operator-metrics"}, service)).To(Succeed())
		for key, value := range service.Spec.Selector {
			Expect(manager.Spec.Template.Labels).To(HaveKeyWithValue(key, value))
		}
		Expect(manager.Spec.Template.Spec.Containers[0].Ports).To(ContainElement(HaveField("Name", service.Spec.Ports[0].TargetPort.StrVal)))
	})

	// Whoever takes over the manager must not get further than this, and reads no Secret. CONTRACT: C-103
	It("has a role that is small", Label("security", "rights"), func(ctx SpecContext) {
		role := &rbacv1.ClusterRole{}
		Expect(c.Get(ctx, client.ObjectKey{Name: "outbox-operator"}, role)).To(Succeed())
		Expect(tooMuch(role)).To(BeEmpty())
	})

	It("goes with the parts that are optional", func() {
		dir := manifests()
		_, err := envtest.Kubectl(GinkgoTB(), "", "apply", "--server-side", "--dry-run=server", "-k", filepath.Join(dir, "network-policy"))
		Expect(err).NotTo(HaveOccurred())
		out, err := envtest.Kubectl(GinkgoTB(), "", "kustomize", filepath.Join(dir, "prometheus")) // its kinds are not installed
		Expect(err).NotTo(HaveOccurred())
		for _, kind := range []string{"kind: ServiceMonitor", "kind: PodMonitor", "kind: PrometheusRule"} {
			Expect(out).To(ContainSubstring(kind))
		}
	})
})

var _ = Describe("the image", Label("install"), func() {
	// The manager gives its own image to dispatchers, so no argument names another one.
	for _, base := range []string{"default", "namespaced"} {
		It("is set in one place by an overlay of config/"+base, func() {
			overlay := filepath.Join(manifests(), "overlay")
			Expect(os.Mkdir(overlay, 0o700)).To(Succeed())
			text := "resources: [../" + base + "]\nimages:\n- {name: outbox-operator, newName: images.example.com:5000/outbox, newTag: v1}\n"
			Expect(os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
			out, err := envtest.Kubectl(GinkgoTB(), "", "kustomize", overlay)
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.Count(out, "image: images.example.com:5000/outbox:v1\n")).To(Equal(1))
			Expect(out).NotTo(Or(ContainSubstring("outbox-operator:dev"), ContainSubstring("--dispatcher-image")))
		})
	}
})

// tooMuch are the rights of a role that the manager does not need.
func tooMuch(role *rbacv1.ClusterRole) (found []string) {
	read := []string{"get", "list", "watch"}
	own := []string{"jobs", "configmaps", "deadletterreplays"} // what it made, and replays after their ttlAfterFinished
	for _, rule := range role.Rules {
		for _, words := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			if slices.Contains(words, "*") {
				found = append(found, "*: "+rule.String())
			}
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				switch {
				case strings.HasPrefix(resource, "secrets"), // CONTRACT C-103
					strings.HasPrefix(resource, "pods/"),
					resource == "pods" && verb != "patch" && !slices.Contains(read, verb), // it reads and annotates them
					resource == "outboxdispatchers" && !slices.Contains(read, verb),       // it only reads them
					verb == "delete" && !slices.Contains(own, resource),
					slices.Contains([]string{"deletecollection", "escalate", "bind", "impersonate"}, verb):
					found = append(found, verb+" "+resource)
				}
			}
		}
	}
	return found
}

// install applies config/default as the README says.
func install() client.Client {
	GinkgoHelper()
	_, err := envtest.Kubectl(GinkgoTB(), "", "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(manifests(), "default"))
	Expect(err).NotTo(HaveOccurred())
	c, err := client.New(envtest.Start(GinkgoTB()), client.Options{})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// manifests returns a copy of this directory, next to one of the chart, which has the CRDs. To copy is also to open: Go
// runs a test again only when a file has changed that the test itself opened, and does not see what kubectl opens.
func manifests() string {
	GinkgoHelper()
	root := GinkgoTB().TempDir()
	for _, dir := range []string{"config", "charts"} {
		Expect(os.CopyFS(filepath.Join(root, dir), os.DirFS(filepath.Join("..", dir)))).To(Succeed())
	}
	return filepath.Join(root, "config")
}

// The table of samples has each file once, and no other.
func TestSamplesAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("samples", "README.md"))
	need.OK(t, err)
	var listed, there []string
	for _, row := range regexp.MustCompile(`(?m)^\| \[([^]]+)\]\(([^)]+)\) \| .+ \|$`).FindAllStringSubmatch(string(text), -1) {
		if listed = append(listed, row[1]); row[1] != row[2] {
			t.Errorf("%s leads to %s", row[1], row[2])
		}
	}
	files, err := os.ReadDir("samples")
	need.OK(t, err)
	for _, file := range files {
		if file.Name() != "README.md" {
			there = append(there, file.Name())
		}
	}
	slices.Sort(listed)
	need.WantAll(t, there, "samples/README.md lists %v, and there are %v", listed)
}

// CONTRACT: C-107
var _ = Describe("config/autoscaling", Label("autoscaling"), func() {
	It("has an HPA that scales a dispatcher by the operator's metric", func(ctx SpecContext) {
		c := install()
		Expect(client.IgnoreAlreadyExists(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))).To(Succeed())
		dispatcher := `
apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: orders, namespace: shop}
spec:
  namespace: shop
  database: {secretRef: {name: orders-db}}
  sink: {log: {}}
  pods: {scaling: {mode: Recommend, min: 1, max: 12}}
`
		_, err := envtest.Kubectl(GinkgoTB(), dispatcher, "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		_, err = envtest.Kubectl(GinkgoTB(), "", "apply", "--validate=strict", "-f", filepath.Join(manifests(), "autoscaling", "hpa.yaml"))
		Expect(err).NotTo(HaveOccurred())
		hpa := &autoscalingv2.HorizontalPodAutoscaler{}
		Expect(c.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "orders"}, hpa)).To(Succeed())
		external := hpa.Spec.Metrics[0].External
		Expect(external.Metric.Name).To(Equal(outboxdispatcher.ReplicasMetric))
		Expect(external.Metric.Selector.MatchLabels).To(Equal(map[string]string{"namespace": "shop", "name": "orders"}))
		Expect([]any{external.Target.Type, external.Target.AverageValue.String()}).To(Equal([]any{autoscalingv2.AverageValueMetricType, "1"}))

		// As the HPA's controller does.
		target := &unstructured.Unstructured{}
		target.SetAPIVersion(hpa.Spec.ScaleTargetRef.APIVersion)
		target.SetKind(hpa.Spec.ScaleTargetRef.Kind)
		Expect(c.Get(ctx, client.ObjectKey{Namespace: hpa.Namespace, Name: hpa.Spec.ScaleTargetRef.Name}, target)).To(Succeed())
		scale := &unstructured.Unstructured{}
		scale.SetAPIVersion("autoscaling/v1")
		scale.SetKind("Scale")
		Expect(c.SubResource("scale").Get(ctx, target, scale)).To(Succeed())
		Expect(unstructured.SetNestedField(scale.Object, int64(hpa.Spec.MaxReplicas), "spec", "replicas")).To(Succeed())
		Expect(c.SubResource("scale").Update(ctx, target, client.WithSubResourceBody(scale))).To(Succeed())
		Expect(c.Get(ctx, client.ObjectKeyFromObject(target), target)).To(Succeed())
		replicas, _, _ := unstructured.NestedInt64(target.Object, "spec", "replicas")
		Expect(replicas).To(BeEquivalentTo(hpa.Spec.MaxReplicas))
	})

	It("names the operator's metric and its labels alone", func() {
		for _, file := range []string{"hpa.yaml", "keda.yaml", "prometheus-adapter.yaml"} {
			text, err := os.ReadFile(filepath.Join("autoscaling", file))
			Expect(err).NotTo(HaveOccurred())
			names := regexp.MustCompile(`outbox_replicas\w*`).FindAllString(string(text), -1)
			Expect(names).NotTo(BeEmpty(), file)
			Expect(names).To(HaveEach(outboxdispatcher.ReplicasMetric), file)
		}
		text, err := os.ReadFile(filepath.Join("prometheus", "manager.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Contains(string(text), "honorLabels: true")).To(BeTrue(), "else the label namespace is the operator's")
	})
})
