package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
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
			if err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
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
