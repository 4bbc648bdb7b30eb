package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

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
		if err != nil {
			t.Fatal(err)
		}
		o := objects(t, string(text))[example.object]
		if o == nil {
			t.Fatalf("%s has no %s", file, example.object)
		}
		if path, has, _ := unstructured.NestedString(o.Object, "spec", "source", "path"); has {
			if _, err := os.Stat(filepath.Join(root, path, "Chart.yaml")); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		values, found, err := unstructured.NestedMap(o.Object, example.values...)
		if err != nil || !found {
			t.Fatalf("%s has no values: %v", file, err)
		}
		out, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		given := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(given, out, 0o600); err != nil {
			t.Fatal(err)
		}
		if rendered := render(t, "--values", given); strings.Count(rendered, "registry.example.com/outbox-operator:") != 1 {
			t.Errorf("%s: the chart does not render one image", file)
		}
	}
}
