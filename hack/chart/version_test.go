package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// kubeVersion of Chart.yaml is the first whose API server takes every expression of the definitions and of the admission
// policies: an API server compiles new expressions as the version before it does.
func TestKubeVersionIsTheFirstThatTakesTheRules(t *testing.T) {
	var meta struct{ KubeVersion string }
	text, err := os.ReadFile(chart + "/Chart.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	first := version.MustParseGeneric(strings.TrimSuffix(strings.TrimPrefix(meta.KubeVersion, ">="), "-0"))
	refused := func(v *version.Version) (found []string) {
		env, err := environment.MustBaseEnvSet(v.SubtractMinor(1)).Env(environment.NewExpressions)
		if err != nil {
			t.Fatal(err)
		}
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
	if len(refused(first.SubtractMinor(1))) == 0 {
		t.Errorf("Kubernetes before %s takes all of them; correct kubeVersion", first)
	}
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
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var object any
			if err := yaml.Unmarshal(text, &object); err != nil {
				t.Fatal(err)
			}
			walk(object)
		}
	}
	return all
}
