package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var _ = Describe("config/admission/restricted", Label("security", "rights"), Ordered, ContinueOnFailure, func() {
	var c client.Client
	namespaces := map[string]map[string]string{
		"restricted-plain": nil,
		"restricted-listed": {
			"outbox.dev/allowed-secrets":          "orders-db-app, kafka-*",
			"outbox.dev/allowed-service-accounts": "orders, cloud-*",
		},
	}

	BeforeAll(func(ctx SpecContext) {
		c = install()
		for name, annotations := range namespaces {
			Expect(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})).To(Succeed())
		}
		// What was there before can still be changed, but for what the policy judges.
		Expect(c.Create(ctx, dispatcher("restricted-plain", "before", "{pods: {template: {spec: {hostPID: true}}}}"))).To(Succeed())
		_, err := envtest.Kubectl(GinkgoTB(), "", "apply", "--server-side", "-k", filepath.Join(manifests(), "admission", "restricted"))
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { // a policy applies a moment after it is there
			return c.Create(ctx, dispatcher("restricted-plain", "try", "{pods: {template: {spec: {hostPID: true}}}}"), client.DryRunAll)
		}).Should(HaveOccurred())
	})

	AfterAll(func() {
		_, err := envtest.Kubectl(GinkgoTB(), "", "delete", "-k", filepath.Join(manifests(), "admission", "restricted"))
		Expect(err).NotTo(HaveOccurred())
	})

	DescribeTable("admits", func(ctx SpecContext, namespace, spec string) {
		Expect(c.Create(ctx, dispatcher(namespace, "try", spec), client.DryRunAll)).To(Succeed())
	},
		Entry("no template", "restricted-plain", "{}"),
		Entry("labels, scheduling and resources", "restricted-plain", `{pods: {template: {metadata: {labels: {team: a}, annotations: {b: c}}, spec: {
			nodeSelector: {disk: ssd}, tolerations: [{operator: Exists}], affinity: {}, topologySpreadConstraints: [], priorityClassName: high,
			containers: [{name: dispatcher, resources: {limits: {memory: 128Mi}}}]}}}}`),
		Entry("a Secret that begins with outbox-", "restricted-plain", "{sink: {http: {url: http://x, signingSecretRef: {name: outbox-key}}}}"),
		Entry("Secrets that the namespace lists", "restricted-listed", `{sink: {kafka: {brokers: [b:9092]},
			auth: {type: ScramSHA512, username: u, secretRef: {name: kafka-user}}, tls: {caSecretRef: {name: orders-db-app}}}}`),
		Entry("an account that the namespace lists", "restricted-listed", "{pods: {serviceAccount: {name: cloud-sqs}}}"),
		Entry("annotations of the dispatcher's own account", "restricted-plain", "{pods: {serviceAccount: {annotations: [{name: a, value: b}]}}}"),
	)

	DescribeTable("refuses", func(ctx SpecContext, namespace, spec, words string) {
		err := c.Create(ctx, dispatcher(namespace, "try", spec), client.DryRunAll)
		Expect(err).To(MatchError(ContainSubstring(words)))
	},
		Entry("the node", "restricted-plain", "{pods: {template: {spec: {hostPID: true}}}}", "spec.pods.template.spec.hostPID is not allowed here: pods.template may set labels"),
		Entry("volumes", "restricted-plain", "{pods: {template: {spec: {volumes: [{name: v, secret: {secretName: s}}]}}}}", "spec.pods.template.spec.volumes is not allowed"),
		Entry("an image", "restricted-plain", "{pods: {template: {spec: {containers: [{name: dispatcher, image: mine}]}}}}", "spec.pods.template.spec.containers is not allowed"),
		Entry("a variable", "restricted-plain", "{pods: {template: {spec: {containers: [{name: dispatcher, env: []}]}}}}", "spec.pods.template.spec.containers is not allowed"),
		Entry("a sidecar", "restricted-plain", "{pods: {template: {spec: {containers: [{name: mine, resources: {}}]}}}}", "spec.pods.template.spec.containers is not allowed"),
		Entry("an owner", "restricted-plain", "{pods: {template: {metadata: {ownerReferences: []}}}}", "spec.pods.template.metadata.ownerReferences is not allowed"),
		Entry("a patch's directive", "restricted-plain", "{pods: {template: {$patch: replace}}}", "spec.pods.template.$patch is not allowed"),
		Entry("another Secret", "restricted-plain", "{sink: {http: {url: http://x, signingSecretRef: {name: payroll-api}}}}",
			`the Secret "payroll-api" may not be named here, only outbox-*; name one of these, or have it added to the annotation outbox.dev/allowed-secrets of the namespace`),
		Entry("what the list does not have", "restricted-listed", "{sink: {http: {url: http://x, signingSecretRef: {name: outbox-key}}}}",
			`the Secret "outbox-key" may not be named here, only orders-db-app, kafka-*`),
		Entry("a name that begins as one of the list", "restricted-listed", "{sink: {http: {url: http://x, signingSecretRef: {name: orders-db-app-owner}}}}", `the Secret "orders-db-app-owner" may not`),
		Entry("the owner's login", "restricted-plain", "{outboxRef: null, database: {secretRef: {name: outbox-db}, migrationSecretRef: {name: orders-db-owner}}}", `the Secret "orders-db-owner" may not`),
		Entry("another account", "restricted-plain", "{pods: {serviceAccount: {name: ci-admin}}}", `spec.pods.serviceAccount.name may not be "ci-admin" here`),
		Entry("an account that the list does not have", "restricted-listed", "{pods: {serviceAccount: {name: orders-admin}}}", `may not be "orders-admin" here`),
	)

	It("admits changes of what was there before it, except of what it judges", func(ctx SpecContext) {
		old := dispatcher("restricted-plain", "before", "{}")
		Expect(c.Get(ctx, client.ObjectKeyFromObject(old), old)).To(Succeed())
		old.SetLabels(map[string]string{"team": "a"})
		Expect(c.Update(ctx, old)).To(Succeed())
		for field, value := range map[string]any{"state": "Paused", "replicas": int64(0), "topics": []any{"orders"}} {
			Expect(unstructured.SetNestedField(old.Object, value, "spec", field)).To(Succeed())
			Expect(c.Update(ctx, old)).To(Succeed(), field)
		}
		for path, value := range map[string]any{
			"database":                        map[string]any{"secretRef": map[string]any{"name": "outbox-db"}},
			"sink":                            map[string]any{"http": map[string]any{"url": "http://x"}},
			"message.transform":               []any{map[string]any{"payload": "payload"}},
			"pods.serviceAccount.annotations": []any{map[string]any{"name": "a", "value": "b"}},
			"pods.template.spec.hostPID":      false,
		} {
			changed := old.DeepCopy()
			if path == "database" {
				unstructured.RemoveNestedField(changed.Object, "spec", "outboxRef")
			}
			Expect(unstructured.SetNestedField(changed.Object, value, append([]string{"spec"}, strings.Split(path, ".")...)...)).To(Succeed())
			Expect(c.Update(ctx, changed, client.DryRunAll)).To(MatchError(ContainSubstring("spec.pods.template.spec.hostPID is not allowed here")), path)
		}
	})
})

// dispatcher is one with an Outbox and a sink, but for what the fields say.
func dispatcher(namespace, name, fields string) *unstructured.Unstructured {
	GinkgoHelper()
	spec := map[string]any{}
	for _, text := range []string{"{namespace: shop, outboxRef: {name: orders}, sink: {log: {}}}", strings.ReplaceAll(fields, "\t", "")} {
		var part map[string]any
		Expect(yaml.Unmarshal([]byte(text), &part)).To(Succeed())
		for field, value := range part {
			if spec[field] = value; value == nil {
				delete(spec, field)
			}
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher",
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec,
	}}
}

// The policy looks at each reference to a Secret that the kind has, and at no other.
func TestRestrictedPolicyKnowsEverySecretReference(t *testing.T) {
	crd, err := os.ReadFile("../charts/outbox-operator/files/crds/outbox.dev_outboxdispatchers.yaml")
	need.OK(t, err)
	policy, err := os.ReadFile("admission/restricted/policy.yaml")
	need.OK(t, err)
	var definition any
	need.OK(t, yaml.Unmarshal(crd, &definition))
	has, named := map[string]bool{}, map[string]bool{}
	secretRefs(definition, "", has)
	for _, found := range regexp.MustCompile(`object\.(spec\.[\w.?]*[sS]ecretRef)\b`).FindAllStringSubmatch(string(policy), -1) {
		named[strings.ReplaceAll(found[1], "?", "")] = true
	}
	for path := range has {
		need.That(t, named[path], "the policy does not look at %s", path)
		part := strings.Replace(strings.Join(strings.SplitN(path, ".", 3)[:2], "."), "spec.", "spec.?", 1)
		need.That(t, strings.Contains(string(policy), "object."+part+" != oldObject."+part), "the policy does not look when %s changes", path)
	}
	for path := range named {
		need.That(t, has[path], "the kind has no %s", path)
	}
}

// secretRefs collects the paths of the fields of a schema that name a Secret for pods to mount.
func secretRefs(node any, path string, found map[string]bool) {
	switch node := node.(type) {
	case []any:
		for _, member := range node {
			secretRefs(member, path, found)
		}
	case map[string]any:
		properties, _ := node["properties"].(map[string]any)
		for name, member := range properties {
			if strings.HasSuffix(strings.ToLower(name), "secretref") {
				found[strings.TrimPrefix(path+"."+name, ".")] = true
			}
			secretRefs(member, path+"."+name, found)
		}
		for key, member := range node {
			if key != "properties" {
				secretRefs(member, path, found)
			}
		}
	}
}
