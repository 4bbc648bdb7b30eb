package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/envtest"
)

// A release's life on a real API server: what people made outlives it, and definitions change with it. No pod runs
// here.
func TestLifeOfARelease(t *testing.T) {
	opened(t)
	kubeconfig := envtest.Kubeconfig(t)
	release := func(chart string, args ...string) string {
		t.Helper()
		args = append(args, "--namespace", "outbox-system", "--kubeconfig", kubeconfig)
		if chart != "" {
			args = append(args, "--create-namespace")
			args = append(args[:2:2], append([]string{chart}, args[2:]...)...)
		}
		out, err := helm(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := envtest.Kubectl(t, "", args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	images := func(want string) {
		t.Helper()
		got := kubectl("-n", "outbox-system", "get", "deployment", "outbox-operator", "-o",
			"jsonpath={.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].args[1]}")
		if got != want+" --dispatcher-image="+want {
			t.Errorf("the manager has %q, want %s for itself and for dispatchers", got, want)
		}
	}
	kubectl("delete", "-k", filepath.Join(root, "config", "crd")) // those of envtest

	notes := release(chart, "install", "outbox-operator")
	if !strings.Contains(notes, "It serves all namespaces.") || !strings.Contains(notes, "There is no published image.") {
		t.Errorf("the notes do not say what is served and that there is no image:\n%s", notes)
	}
	images("outbox-operator:dev")
	kubectl("wait", "crd/outboxdispatchers.outbox.dev", "--for=condition=Established")
	kubectl("create", "namespace", "shop")
	kubectl("-n", "shop", "apply", "-f", filepath.Join(root, "config", "samples", "http.yaml"))

	release(withColumn(t), "upgrade", "outbox-operator", "--set", "image.tag=v2")
	images("outbox-operator:v2")
	if columns := kubectl("get", "crd", "outboxdispatchers.outbox.dev", "-o", "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}"); !strings.Contains(columns, "Added") {
		t.Errorf("the definition was not upgraded: its columns are %s", columns)
	}
	release("", "rollback", "outbox-operator", "1")
	images("outbox-operator:dev")

	release("", "uninstall", "outbox-operator")
	if left := kubectl("-n", "outbox-system", "get", "deployments,serviceaccounts,roles,services,pdb", "-o", "name"); strings.Contains(left, "outbox") {
		t.Errorf("uninstalled, and there are still: %s", left)
	}
	if deleted := kubectl("get", "crd", "outboxdispatchers.outbox.dev", "-o", "jsonpath={.metadata.deletionTimestamp}"); deleted != "" {
		t.Error("the uninstallation deletes the definition")
	}
	if kept := kubectl("-n", "shop", "get", "outboxdispatchers", "-o", "name"); kept == "" {
		t.Error("the uninstallation deleted an OutboxDispatcher")
	}
	release(chart, "install", "outbox-operator") // takes the definitions over again
	release("", "uninstall", "outbox-operator")

	kubectl("apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, "config", "default"))
	uid := func() string {
		return kubectl("-n", "outbox-system", "get", "deployment", "outbox-operator", "-o", "jsonpath={.metadata.uid}")
	}
	before := uid()
	release(chart, "install", "outbox-operator", "--take-ownership", "--force-conflicts")
	if after := uid(); after != before {
		t.Errorf("the Deployment of kustomize was made anew: %s, was %s", after, before)
	}
	release("", "uninstall", "outbox-operator")
}

// withColumn returns a copy of the chart whose definition has a column more.
func withColumn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "files", "crds", "customresourcedefinition-outboxdispatchers.outbox.dev.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const columns = "  - additionalPrinterColumns:\n"
	text = bytes.Replace(text, []byte(columns), []byte(columns+"    - jsonPath: .metadata.uid\n      name: Added\n      type: string\n"), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
