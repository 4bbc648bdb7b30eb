package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// bases are the folders of config/ that install what each set of values does.
var bases = map[string][]string{
	"default":    {"default"},
	"everything": {"default"},
	"monitored":  {"default", "prometheus", "network-policy", "admission/restricted"},
	"namespaced": {"namespaced", "prometheus", "network-policy"},
}

// The golden file has the lines in which the chart's objects differ from those of config/.
func TestChartDiffersFromConfigAsAccepted(t *testing.T) {
	for _, values := range valueSets(t) {
		set := strings.TrimSuffix(filepath.Base(values), ".yaml")
		var kustomized []string
		for _, dir := range bases[set] {
			text, err := envtest.Kubectl(t, "", "kustomize", filepath.Join(root, "config", dir))
			need.OK(t, err)
			kustomized = append(kustomized, text)
		}
		golden.Check(t, "differences.golden", set, difference(canonical(t, strings.Join(kustomized, "\n---\n")), canonical(t, render(t, "--values", values))))
	}
}

// canonical writes the objects of a text in one order and form, without the definitions.
func canonical(t *testing.T, text string) string {
	t.Helper()
	all := objects(t, text)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].GetKind() == "CustomResourceDefinition" {
			continue
		}
		normalize(all[name])
		part, err := yaml.Marshal(all[name].Object)
		need.OK(t, err)
		fmt.Fprintf(&out, "--- %s\n%s", name, part)
	}
	return out.String()
}

// difference returns the lines that only base has, with -, and those that only text has, with +. A line above them names
// the object of base and the number of its lines that come before.
func difference(base, text string) string {
	a, b := strings.SplitAfter(base, "\n"), strings.SplitAfter(text, "\n")
	common := make([][]int, len(a)+1) // common[i][j] is the number of lines that a[i:] and b[j:] share, in order
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	for i, j, same := 0, 0, true; i < len(a) || j < len(b); {
		if i < len(a) && j < len(b) && a[i] == b[j] {
			i, j, same = i+1, j+1, true
			continue
		}
		if same {
			fmt.Fprintf(&out, "@@ %s\n", place(a, i))
		}
		same = false
		if j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1] {
			out.WriteString("-" + a[i])
			i++
		} else {
			out.WriteString("+" + b[j])
			j++
		}
	}
	return out.String()
}

// place names the object of a line, and the number of its lines that come before.
func place(lines []string, line int) string {
	start := min(line, len(lines)-1)
	for start > 0 && !strings.HasPrefix(lines[start], "--- ") {
		start--
	}
	return fmt.Sprintf("%s: %d", strings.TrimSpace(strings.TrimPrefix(lines[start], "--- ")), line-start)
}

// Labels pick some of these specs, of which there is one story: `go test ./hack/chart -ginkgo.label-filter=helm`.
func TestOnTheAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the chart on an API server")
}

// A release's life on a real API server: what people made outlives it, and definitions change with it. No pod runs
// here.
var _ = Describe("a release", Label("helm"), Ordered, func() {
	var kubeconfig string

	BeforeAll(func() {
		opened(GinkgoTB())
		kubeconfig = envtest.Kubeconfig(GinkgoTB())
		kubectl("delete", "-k", filepath.Join(root, "config", "crd")) // those of envtest
	})

	release := func(chart string, args ...string) string {
		GinkgoHelper()
		args = append(args, "--namespace", "outbox-system", "--kubeconfig", kubeconfig)
		if chart != "" {
			args = append(args, "--create-namespace")
			args = append(args[:2:2], append([]string{chart}, args[2:]...)...)
		}
		out, err := helm(GinkgoTB(), args...)
		Expect(err).NotTo(HaveOccurred())
		return out
	}
	image := func(want string) {
		GinkgoHelper()
		Expect(kubectl("-n", "outbox-system", "get", "deployment", "outbox-operator", "-o", "jsonpath={.spec.template.spec.containers[0].image}")).To(Equal(want))
	}

	It("is installed, and says what it serves", func() {
		notes := release(chart, "install", "outbox-operator")
		Expect(notes).To(And(ContainSubstring("It serves all namespaces."), ContainSubstring("There is no published image.")))
		image("outbox-operator:dev")
		kubectl("wait", "crd/outboxdispatchers.outbox.dev", "--for=condition=Established")
		kubectl("create", "namespace", "shop")
		Eventually(func() error { // a definition is served a moment after it is established
			_, err := envtest.Kubectl(GinkgoTB(), "", "-n", "shop", "apply", "-f", filepath.Join(root, "config", "samples", "http.yaml"))
			return err
		}).Should(Succeed())
	})

	// The team may do everything in its namespaces, and nothing in the cluster.
	It("lets a team install another of its own, without a right in the cluster", func() {
		for _, namespace := range []string{"team-a", "team-operator"} {
			kubectl("create", "namespace", namespace)
			kubectl("-n", namespace, "create", "rolebinding", "team", "--clusterrole=cluster-admin", "--user=team")
		}
		args := []string{"team", chart, "--namespace", "team-operator", "--kubeconfig", kubeconfig, "--kube-as-user", "team",
			"--set", "watchNamespaces={team-a}", "--set", "crds.enabled=false"}
		_, err := helm(GinkgoTB(), append([]string{"install"}, args...)...)
		Expect(err).NotTo(HaveOccurred())
		_, err = helm(GinkgoTB(), append([]string{"upgrade", "--set", "replicaCount=1"}, args...)...)
		Expect(err).NotTo(HaveOccurred())
		second := []string{"install", "second", chart, "--namespace", "second-operator", "--create-namespace", "--kubeconfig", kubeconfig,
			"--set", "watchNamespaces={team-a}", "--set", "crds.enabled=false"}
		_, err = helm(GinkgoTB(), second...)
		Expect(err).To(MatchError(ContainSubstring("invalid ownership metadata")), "roles for people have one name in each release")
		_, err = helm(GinkgoTB(), append(second, "--set", "userRoles.create=false")...)
		Expect(err).NotTo(HaveOccurred())
		_, err = helm(GinkgoTB(), "uninstall", "second", "--namespace", "second-operator", "--kubeconfig", kubeconfig)
		Expect(err).NotTo(HaveOccurred())
		_, err = helm(GinkgoTB(), "uninstall", "team", "--namespace", "team-operator", "--kubeconfig", kubeconfig, "--kube-as-user", "team")
		Expect(err).NotTo(HaveOccurred())
	})

	It("is upgraded, and the definitions with it", func() {
		release(withColumn(), "upgrade", "outbox-operator", "--reset-then-reuse-values", "--set", "image.tag=v2") // as the page says
		image("outbox-operator:v2")
		columns := kubectl("get", "crd", "outboxdispatchers.outbox.dev", "-o", "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}")
		Expect(columns).To(ContainSubstring("Added"), "the definition was not upgraded")
	})

	It("is rolled back", func() {
		release("", "rollback", "outbox-operator", "1")
		image("outbox-operator:dev")
	})

	It("is uninstalled, and what people made stays", func() {
		release("", "uninstall", "outbox-operator")
		Expect(kubectl("-n", "outbox-system", "get", "deployments,serviceaccounts,roles,services,pdb", "-o", "name")).NotTo(ContainSubstring("outbox"))
		Expect(kubectl("get", "crd", "outboxdispatchers.outbox.dev", "-o", "jsonpath={.metadata.deletionTimestamp}")).To(BeEmpty(), "the definition stays")
		Expect(kubectl("-n", "shop", "get", "outboxdispatchers", "-o", "name")).NotTo(BeEmpty())
	})

	It("takes the definitions over when it is installed again, or under another name", func() {
		release(chart, "install", "outbox-operator")
		release("", "uninstall", "outbox-operator")
		release(chart, "install", "events", "--take-ownership")
		release("", "uninstall", "events")
	})

	It("takes over what kustomize installed", func() {
		uid := func() string {
			return kubectl("-n", "outbox-system", "get", "deployment", "outbox-operator", "-o", "jsonpath={.metadata.uid}")
		}
		kubectl("apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, "config", "default"))
		before := uid()
		release(chart, "install", "outbox-operator", "--take-ownership", "--force-conflicts")
		Expect(uid()).To(Equal(before), "the Deployment of kustomize was replaced")
		release("", "uninstall", "outbox-operator")
	})
})

// kubectl runs as the administrator of the API server.
func kubectl(args ...string) string {
	GinkgoHelper()
	out, err := envtest.Kubectl(GinkgoTB(), "", args...)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// withColumn returns a copy of the chart whose definition has a column more.
func withColumn() string {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	Expect(os.CopyFS(dir, os.DirFS(chart))).To(Succeed())
	file := filepath.Join(dir, "files", "crds", "outbox.dev_outboxdispatchers.yaml")
	text, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	const columns = "  - additionalPrinterColumns:\n"
	text = bytes.Replace(text, []byte(columns), []byte(columns+"    - jsonPath: .metadata.uid\n      name: Added\n      type: string\n"), 1)
	Expect(os.WriteFile(file, text, 0o600)).To(Succeed())
	return dir
}
