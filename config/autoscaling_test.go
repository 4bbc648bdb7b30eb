package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/outboxdispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

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
