package operatortest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var updateExamples = flag.Bool("update-examples", false, "write the messages of examples in the pages of the kinds")

// CheckExamples fails the test unless the page of a kind in api/v1alpha1 has a section for each type of the conditions,
// with one of them as its example, and no section for another type. With -update-examples it writes the messages of
// examples whose status and reason are those of a condition.
func CheckExamples(t testing.TB, page string, conditions ...metav1.Condition) {
	t.Helper()
	path := filepath.Join("..", "..", "api", "v1alpha1", page)
	text, err := os.ReadFile(path)
	need.OK(t, err)
	before, about, _ := strings.Cut(string(text), "\n## Conditions\n")
	examples := map[string][]string{}
	for _, c := range conditions {
		mark := fmt.Sprintf("\n> `%s=%s` `%s`: ", c.Type, c.Status, c.Reason)
		examples[c.Type] = append(examples[c.Type], mark+c.Message+"\n")
		if first, rest, has := strings.Cut(about, mark); has && *updateExamples {
			_, rest, _ = strings.Cut(rest, "\n")
			about = first + mark + c.Message + "\n" + rest
		}
	}
	if *updateExamples {
		need.OK(t, os.WriteFile(path, []byte(before+"\n## Conditions\n"+about), 0o644))
	}
	sections := map[string]bool{}
	for _, section := range strings.Split(about, "\n### ")[1:] {
		kind, body, _ := strings.Cut(section, "\n")
		if strings.Contains(kind, " ") { // it is not about one condition
			continue
		}
		sections[kind] = true
		if !slices.ContainsFunc(examples[kind], func(example string) bool { return strings.Contains(body, example) }) {
			t.Errorf("%s: section %s has no example that the operator writes; want one of%s\nor run the test with -update-examples", page, kind, strings.Join(examples[kind], ""))
		}
	}
	for kind := range examples {
		if !sections[kind] {
			t.Errorf("%s has no section %s", page, kind)
		}
	}
}
