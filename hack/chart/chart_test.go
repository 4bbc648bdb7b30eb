package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestMain(m *testing.M) { envtest.Main(m) }

const (
	root  = "../.."
	chart = root + "/charts/outbox-operator"
)

// helmPath is the helm that hack/pins/tool.sh pins; the first call of a machine builds it.
var helmPath = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("../pins/tool.sh", "helm")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// helm runs helm without the user's settings. The error holds its standard error.
func helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	path, err := helmPath()
	need.OK(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}

// render returns what the chart makes of values, as a release of the names that config/ has.
func render(t *testing.T, args ...string) string {
	t.Helper()
	opened(t)
	out, err := helm(t, append([]string{"template", "outbox-operator", chart, "--namespace", "outbox-system"}, args...)...)
	need.OK(t, err)
	return out
}

// opened reads the chart's and config's files: Go runs a test again only when a file has changed that the test
// itself opened, and does not see what helm and kubectl open.
func opened(t testing.TB) {
	t.Helper()
	for _, dir := range []string{chart, root + "/config"} {
		need.OK(t, os.CopyFS(t.TempDir(), os.DirFS(dir)))
	}
}

// objects of a text, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	for _, part := range strings.Split("\n"+text, "\n---\n") {
		o := &unstructured.Unstructured{}
		need.OK(t, yaml.Unmarshal([]byte(part), &o.Object))
		if len(o.Object) > 0 {
			all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = o
		}
	}
	return all
}

func valueSets(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	need.Must(t, err == nil && len(files) >= 4, "%d sets of values, want 4: %v", len(files), err)
	return files
}

func TestChartPassesLint(t *testing.T) {
	opened(t)
	for _, values := range valueSets(t) {
		need.Want(t, nil, "%v", need.Err(helm(t, "lint", "--strict", chart, "--values", values)))
	}
}

// The chart and kustomize install the same. What is allowed to differ is written here.
func TestChartEqualsConfig(t *testing.T) {
	for dir, args := range map[string][]string{
		"default":    {"--set", "userRoles.aggregate=true"}, // a choice in the chart
		"namespaced": {"--set", "watchNamespaces={team-a,team-b}"},
	} {
		kustomized, err := envtest.Kubectl(t, "", "kustomize", filepath.Join(root, "config", dir))
		need.OK(t, err)
		want, got := objects(t, kustomized), objects(t, render(t, args...))
		delete(want, "Namespace /outbox-system") // helm's --create-namespace
		for name, w := range want {
			g := got[name]
			if g == nil {
				t.Errorf("config/%s has %s, and the chart has not", dir, name)
				continue
			}
			delete(got, name)
			for _, o := range []*unstructured.Unstructured{w, g} {
				normalize(o)
			}
			if !equality.Semantic.DeepEqual(w.Object, g.Object) {
				wants, _ := yaml.Marshal(w.Object)
				gots, _ := yaml.Marshal(g.Object)
				t.Errorf("%s differs.\nconfig/%s:\n%s\nchart:\n%s", name, dir, wants, gots)
			}
		}
		for name := range got {
			t.Errorf("the chart has %s, and config/%s has not", name, dir)
		}
	}
}

// normalize removes what only Helm or only kustomize writes, and the order of arguments, which has no meaning.
func normalize(o *unstructured.Unstructured) {
	labels := o.GetLabels()
	for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"} {
		delete(labels, label)
	}
	o.SetLabels(nilIfEmpty(labels))
	annotations := o.GetAnnotations()
	delete(annotations, "helm.sh/resource-policy")
	o.SetAnnotations(nilIfEmpty(annotations))
	if containers, ok, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers"); ok {
		args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		slices.Sort(args)
		_ = unstructured.SetNestedStringSlice(containers[0].(map[string]any), args, "args")
		_ = unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
	}
}

// Each object has the labels by which Helm and people find what belongs to the release.
func TestEveryObjectHasTheReleaseLabels(t *testing.T) {
	for _, values := range valueSets(t) {
		for name, o := range objects(t, render(t, "--values", values)) {
			for label, want := range map[string]string{
				"app.kubernetes.io/name": "outbox-operator", "app.kubernetes.io/instance": "outbox-operator",
				"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/version": "dev", "helm.sh/chart": "outbox-operator-0.0.0",
			} {
				need.Want(t, want, "%s: %s has the label %s %q, want %q", o.GetLabels()[label], values, name, label)
			}
		}
	}
}

func nilIfEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}

// With watchNamespaces there is nothing of the whole cluster but what crds.enabled installs, and no right anywhere outside
// of the namespaces.
func TestNamespacedHasNoClusterRole(t *testing.T) {
	cluster := map[string]int{}
	for _, crds := range []string{"crds.enabled=true", "crds.enabled=false"} {
		for name, o := range objects(t, render(t, "--set", "watchNamespaces={team-a,team-b}", "--set", "userRoles.aggregate=true", "--set", crds)) {
			switch {
			case o.GetNamespace() == "":
				cluster[crds]++
				need.That(t, o.GetKind() == "CustomResourceDefinition" || strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy"),
					"%s: %s belongs to no namespace", crds, name)
			case !slices.Contains([]string{"outbox-system", "team-a", "team-b"}, o.GetNamespace()):
				t.Errorf("%s: %s is in another namespace", crds, name)
			}
		}
	}
	need.That(t, cluster["crds.enabled=true"] != 0 && cluster["crds.enabled=false"] == 0,
		"objects of the whole cluster: %v, want none with crds.enabled=false, and some else", cluster)
}

// OpenShift's restricted-v2 gives a pod its user, and refuses one that names another.
func TestPodsNameNoUser(t *testing.T) {
	texts := map[string]string{"the chart": render(t)}
	for _, name := range []string{"minimal.yaml", "full.yaml"} { // of a dispatcher and its Jobs
		texts[name] = golden.Text(t, root+"/controllers/internal/desired/testdata/objects.golden", name)
	}
	for name, text := range texts {
		need.That(t, strings.Contains(text, "runAsNonRoot: true") && !regexp.MustCompile(`runAsUser|runAsGroup|fsGroup:|supplementalGroups`).MatchString(text),
			"%s: pods do not leave their user to the cluster", name)
	}
}

func TestDefinitionsAreKeptAsConfigured(t *testing.T) {
	has := func(want int, keep string, args ...string) {
		t.Helper()
		found := 0
		for _, o := range objects(t, render(t, args...)) {
			if o.GetKind() != "CustomResourceDefinition" {
				continue
			}
			found++
			need.Want(t, keep, "%v: %s has the policy %q, want %q", o.GetAnnotations()["helm.sh/resource-policy"], args, o.GetName())
		}
		need.Want(t, want, "%v: %d definitions, want %d", found, args)
	}
	files, err := filepath.Glob(chart + "/files/crds/outbox.dev_*.yaml")
	need.Must(t, err == nil && len(files) != 0, "%s/files/crds has no definition: %v", chart, err)
	has(len(files), "keep")
	has(len(files), "", "--set", "crds.keep=false")
	has(0, "", "--set", "crds.enabled=false")
}

// The policies are kept as the definitions are: without them, what is created between two releases is unproven. The
// optional one is not: when its value is false again, it refuses nothing.
func TestAdmissionPoliciesAreKept(t *testing.T) {
	for want, args := range map[string][]string{
		"keep,keep,keep,keep": nil, ",,,": {"--set", "crds.keep=false"}, "": {"--set", "crds.enabled=false"},
		"keep,keep,keep,keep,optional,optional": {"--set", "restrictedPolicy.enabled=true"},
	} {
		var kept []string
		for _, o := range objects(t, render(t, args...)) {
			if strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
				policy := o.GetAnnotations()["helm.sh/resource-policy"]
				if o.GetName() == "outboxdispatchers-restricted" {
					policy = "optional" + policy
				}
				kept = append(kept, policy)
			}
		}
		slices.Sort(kept)
		need.Want(t, want, "%v: %q, want %q", strings.Join(kept, ","), args)
	}
}

// What is scraped and what alerts is of this release: no pods of ignored namespaces, and no alert about managers that are
// not scraped.
func TestMonitorsAndAlertsFollowTheValues(t *testing.T) {
	const dropped, alert = "action: drop\n        regex: team-a|team-b\n        sourceLabels:\n        - __meta_kubernetes_namespace\n", "alert: OutboxOperatorAbsent"
	for set, want := range map[string]struct{ dropped, alert bool }{
		"prometheus.secure=null":                           {false, true},
		"ignoreNamespaces={team-a,team-b}":                 {true, true},
		"ignoreNamespaces={team-a},watchNamespaces={shop}": {false, true},
		"prometheus.enabled=false":                         {false, false},
	} {
		text := render(t, "--set", "prometheus.podmonitor.enabled=true,prometheus.prometheusrule.enabled=true", "--set", set)
		need.Want(t, want.dropped, "%s: pods of ignored namespaces are left out: %t, want %t", strings.Contains(text, dropped), set)
		need.Want(t, want.alert, "%s: there is the alert about managers: %t, want %t", strings.Contains(text, alert), set)
		need.That(t, strings.Contains(text, "alert: OutboxPodsAbsent"), "%s: the alerts about dispatchers are missing", set)
	}
}

// A value that is misspelt or out of bounds is refused, and named.
func TestWrongValuesAreRefused(t *testing.T) {
	for set, want := range map[string]string{
		"replicaz=3":                            "replicaz",
		"image.repo=x":                          "repo",
		"replicaCount=two":                      "/replicaCount",
		"logLevel=loud":                         "/logLevel",
		"image.digest=latest":                   "/image/digest",
		"watchNamespaces={Team A}":              "/watchNamespaces/0",
		"prometheus.secure=perhaps":             "/prometheus/secure",
		"observeInterval=10":                    "/observeInterval",
		"maxRollingUpgrades=0":                  "/maxRollingUpgrades",
		"image.pullPolicy=Sometimes":            "/image/pullPolicy",
		"watchNamespaces={a,a}":                 "/watchNamespaces",
		"image.repository=":                     "/image/repository",
		"prometheus.podmonitor.enabled=perhaps": "/prometheus/podmonitor/enabled",
		"crds.enabled=perhaps":                  "/crds/enabled",
		"serviceAccount.annotation=x":           "annotation",
	} {
		_, err := helm(t, "template", chart, "--set", set)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "--set %s: %v, want an error that names %s", set, err, want)
	}
}

// A chart that has this one as a part turns it on and off by a condition on its value.
func TestAPartIsTurnedOffByACondition(t *testing.T) {
	opened(t)
	parent := t.TempDir()
	need.OK(t, os.CopyFS(filepath.Join(parent, "charts", "outbox-operator"), os.DirFS(chart)))
	const meta = "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n- {name: outbox-operator, version: 0.0.0, condition: outbox-operator.enabled}\n"
	need.OK(t, os.WriteFile(filepath.Join(parent, "Chart.yaml"), []byte(meta), 0o600))
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		text, err := helm(t, "template", parent, "--set", "outbox-operator.enabled="+enabled)
		got := strings.Contains(text, "\nkind: Deployment\n")
		need.That(t, err == nil && got == want, "outbox-operator.enabled=%s: a Deployment is %t, want %t: %v", enabled, got, want, err)
	}
}

// The manager knows each argument that the chart gives it.
func TestArgumentsAreFlags(t *testing.T) {
	source, err := os.ReadFile(root + "/controllers/cmd/manager/main.go")
	need.OK(t, err)
	flags := map[string]bool{"kubeconfig": true} // controller-runtime's
	for _, found := range regexp.MustCompile(`flag\.\w+\((?:&[\w.]+, )?"([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		flags[found[1]] = true
	}
	for _, values := range valueSets(t) {
		for _, found := range regexp.MustCompile(`(?m)^ +- "?--([a-z-]+)`).FindAllStringSubmatch(render(t, "--values", values), -1) {
			need.That(t, flags[found[1]], "%s: the manager has no flag --%s", values, found[1])
		}
	}
}

// What is generated is up to date; `make generate` writes it.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"config", "charts"} {
		need.OK(t, os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(root, part))))
	}
	need.OK(t, generate(dir))
	for _, part := range []string{"config", "charts"} {
		out, err := exec.CommandContext(t.Context(), "diff", "-r", filepath.Join(root, part), filepath.Join(dir, part)).CombinedOutput()
		need.That(t, err == nil, "%s is not what its generator makes; run `make generate`:\n%s", part, out)
	}
}

// What config/gitops shows of Argo CD and Flux gives the chart values that it takes, and one image.
func TestGitOpsExamplesAreOfTheChart(t *testing.T) {
	for file, example := range map[string]struct {
		object string
		values []string
	}{
		"argocd-application.yaml": {"Application argocd/outbox-operator", []string{"spec", "source", "helm", "valuesObject"}},
		"flux-helmrelease.yaml":   {"HelmRelease outbox-system/outbox-operator", []string{"spec", "values"}},
	} {
		text, err := os.ReadFile(filepath.Join(root, "config", "gitops", file))
		need.OK(t, err)
		o := objects(t, string(text))[example.object]
		need.Must(t, o != nil, "%s has no %s", file, example.object)
		if path, has, _ := unstructured.NestedString(o.Object, "spec", "source", "path"); has {
			need.Want(t, nil, "%s: %v", need.Err(os.Stat(filepath.Join(root, path, "Chart.yaml"))), file)
		}
		values, found, err := unstructured.NestedMap(o.Object, example.values...)
		need.Must(t, err == nil && found, "%s has no values: %v", file, err)
		out, err := yaml.Marshal(values)
		need.OK(t, err)
		given := filepath.Join(t.TempDir(), "values.yaml")
		need.OK(t, os.WriteFile(given, out, 0o600))
		rendered := render(t, "--values", given)
		need.That(t, strings.Count(rendered, "registry.example.com/outbox-operator:") == 1, "%s: the chart does not render one image", file)
	}
}

// kubeVersion of Chart.yaml is the first whose API server takes every expression of the definitions and of the admission
// policies: an API server compiles new expressions as the version before it does.
func TestKubeVersionIsTheFirstThatTakesTheRules(t *testing.T) {
	var meta struct{ KubeVersion string }
	text, err := os.ReadFile(chart + "/Chart.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &meta)
	}
	need.OK(t, err)
	first := version.MustParseGeneric(strings.TrimSuffix(strings.TrimPrefix(meta.KubeVersion, ">="), "-0"))
	refused := func(v *version.Version) (found []string) {
		env, err := environment.MustBaseEnvSet(v.SubtractMinor(1)).Env(environment.NewExpressions)
		need.OK(t, err)
		options := []cel.EnvOption{}
		for _, name := range []string{"self", "oldSelf", "object", "oldObject", "request", "authorizer", "namespaceObject", "variables"} {
			options = append(options, cel.Variable(name, cel.DynType))
		}
		if env, err = env.Extend(options...); err != nil {
			t.Fatal(err)
		}
		for _, rule := range expressions(t) {
			if _, issues := env.Compile(rule); issues.Err() != nil {
				found = append(found, rule+": "+issues.String())
			}
		}
		return found
	}
	if found := refused(first); len(found) > 0 {
		t.Errorf("%d expressions are not for %s; the first: %s", len(found), first, found[0])
	}
	need.That(t, len(refused(first.SubtractMinor(1))) != 0, "Kubernetes before %s takes all of them; correct kubeVersion", first)
}

// expressions are all CEL of the chart's files.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, member := range node {
				walk(member)
			}
		case map[string]any:
			for key, member := range node {
				if text, ok := member.(string); ok && (key == "rule" || strings.HasSuffix(strings.ToLower(key), "expression")) {
					all = append(all, text)
				}
				walk(member)
			}
		}
	}
	for _, pattern := range []string{"crds/outbox.dev_*", "admission/*", "restricted/*"} {
		files, err := filepath.Glob(filepath.Join(chart, "files", pattern))
		need.Must(t, err == nil && len(files) != 0, "no files %s: %v", pattern, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			need.OK(t, err)
			var object any
			need.OK(t, yaml.Unmarshal(text, &object))
			walk(object)
		}
	}
	return all
}
