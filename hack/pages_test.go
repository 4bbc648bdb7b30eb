package hack

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var argument = regexp.MustCompile(`flag\.[A-Z]\w+\((?:&?[\w.]+, )?"([a-z-]+)"`)

func TestArgumentsOfTheManagerHaveTheirLines(t *testing.T) {
	page := files(t, "config/README.md")["config/README.md"]
	all := argument.FindAllStringSubmatch(files(t, "manager/main.go")["controllers/cmd/manager/main.go"], -1)
	if len(all) < 5 {
		t.Fatalf("main.go has %d arguments; is that so?", len(all))
	}
	for _, a := range all {
		if !strings.Contains(page, "\n| `--"+a[1]+"` |") {
			t.Errorf("config/README.md has no line for --%s in the table of arguments", a[1])
		}
	}
}

var (
	label  = regexp.MustCompile(`\bLabel\(("[^)]*")\)`)
	suites = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| ([a-z, ]+)(?::.*)? \\|$")
)

func TestLabelsOfSpecsAreListed(t *testing.T) {
	want := map[string][]string{}
	for name, text := range files(t, "_test.go") {
		for _, found := range label.FindAllStringSubmatch(text, -1) {
			for _, one := range strings.Split(found[1], ", ") {
				want[path.Dir(name)] = append(want[path.Dir(name)], strings.Trim(one, `"`))
			}
		}
	}
	listed := map[string][]string{}
	for _, row := range suites.FindAllStringSubmatch(files(t, "hack/README.md")["hack/README.md"], -1) {
		listed[row[1]] = strings.Split(row[2], ", ")
		if want[row[1]] == nil {
			t.Errorf("hack/README.md lists labels of %s, which has none", row[1])
		}
	}
	for suite, labels := range want {
		slices.Sort(labels)
		slices.Sort(listed[suite])
		if labels = slices.Compact(labels); !slices.Equal(labels, listed[suite]) {
			t.Errorf("hack/README.md lists the labels of %s as %q; they are %q", suite, listed[suite], labels)
		}
	}
}
