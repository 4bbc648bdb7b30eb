// Package gitops_test plays what GitOps tools conclude from the conditions of an object. The Lua of Argo CD is
// played in hack/gitops, which has the interpreter.
package gitops_test

import (
	"os"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

type tool struct {
	Name, Argo, Kstatus, Flux string
	Generation, Observed      int64
	Conditions                []any
}

func (c tool) object() map[string]any {
	o := map[string]any{
		"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher",
		"metadata": map[string]any{"name": "orders", "namespace": "shop", "generation": c.Generation},
	}
	status := map[string]any{"observedGeneration": c.Observed}
	if c.Conditions != nil {
		status["conditions"] = c.Conditions
	}
	o["status"] = status
	return o
}

func load(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	need.Must(t, err == nil, "%s: %v", file, err)
}

func TestConclusionsAreThoseOfTheCases(t *testing.T) {
	var cases []tool
	load(t, "testdata/cases.yaml", &cases)
	var kustomization struct {
		Spec struct{ HealthCheckExprs []map[string]string }
	}
	load(t, "flux.yaml", &kustomization)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			result, err := kstatus.Compute(&unstructured.Unstructured{Object: c.object()})
			need.That(t, err == nil && result.Status.String() == c.Kstatus, "kstatus concludes %v (%v), want %s", result, err, c.Kstatus)
			need.Want(t, c.Flux, "Flux concludes %s, want %s", flux(t, kustomization.Spec.HealthCheckExprs[0], c.object()))
		})
	}
}

// flux evaluates the expressions in Flux' order. One that cannot be computed yet is waited for.
func flux(t *testing.T, expressions map[string]string, object map[string]any) string {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("metadata", cel.DynType), cel.Variable("status", cel.DynType))
	need.OK(t, err)
	for _, conclusion := range []string{"inProgress", "failed", "current"} {
		ast, issues := env.Compile(expressions[conclusion])
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		need.OK(t, err)
		switch value, _, err := program.Eval(object); {
		case err != nil:
			return "inProgress"
		case value.Value() == true:
			return conclusion
		}
	}
	return "inProgress"
}
