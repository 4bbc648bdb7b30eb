// Package hack holds what developers run. Its test keeps the import rules of the project.
package hack

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outbox-operator/outbox-operator/"

// rules say what the files of a package tree, but its tests, may not import, directly or through another
// package of ours.
var rules = []struct {
	tree, why string
	never     []string // with what is below them; one that ends in /. alone
	except    string   // a package of the tree, with what is below it, to which the rule does not apply
}{
	{"api", "the documents are plain data, importable by anyone", []string{module + "dispatcher", module + "controllers", module + "migrations", "github.com/jackc/pgx", "k8s.io/client-go"}, ""},
	{"dispatcher", "the data plane knows no Kubernetes", []string{"k8s.io/", "sigs.k8s.io/controller-runtime", module + "controllers", module + "api/v1alpha1"}, ""},
	{"controllers", "the control plane opens no database connection and imports no sink", []string{"github.com/jackc/pgx", module + "migrations", module + "dispatcher/engine", module + "dispatcher/pgstore", module + "dispatcher/sink", module + "dispatcher/client"}, ""},
	{"controllers/cmd/kubectl-outbox", "a plugin needs a client, and not what runs a manager, which is 1.3 MB", []string{"sigs.k8s.io/controller-runtime/."}, ""},
	{"migrations", "a migration needs a connection and nothing else", []string{module + "dispatcher", module + "controllers", module + "api", "k8s.io/"}, ""},
	{"api", whyNoHack, []string{module + "hack"}, ""},
	{"dispatcher", whyNoHack, []string{module + "hack"}, "dispatcher/internal/sinks/outboxtest"},
	{"controllers", whyNoHack, []string{module + "hack"}, "controllers/internal/operatortest"},
	{"migrations", whyNoHack, []string{module + "hack"}, ""},
}

const whyNoHack = "the product never needs what only developers run; tests may"

func TestPackagesImportWhatTheyMay(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		imports[words[0]] = words[1:]
	}
	for _, rule := range rules {
		checked := 0
		for pkg := range imports {
			if pkg != module+rule.tree && !strings.HasPrefix(pkg, module+rule.tree+"/") {
				continue
			}
			if rule.except != "" && (pkg == module+rule.except || strings.HasPrefix(pkg, module+rule.except+"/")) {
				continue
			}
			checked++
			for _, never := range rule.never {
				if chain := find(imports, pkg, never, map[string]bool{}); chain != nil {
					t.Errorf("%s: %s\n  %s", rule.tree, rule.why, strings.Join(chain, "\n  imports "))
				}
			}
		}
		if checked == 0 {
			t.Errorf("no package below %s was checked", rule.tree)
		}
	}
}

// mostTested is how many packages may run their tests again after a change of one sink.
const mostTested = 10

// A change of one sink runs few tests again: other packages test with a function that stands for a sink.
func TestOneSinkIsTestedByFewPackages(t *testing.T) {
	const sinks = module + "dispatcher/internal/sinks/"
	out, err := exec.Command("go", "list", "-deps", "-test", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	testedBy := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		binary, ok := strings.CutSuffix(words[0], ".test")
		if !ok || !strings.HasPrefix(binary, module) {
			continue
		}
		for _, dep := range words[1:] {
			if strings.HasPrefix(dep, sinks) && strings.HasSuffix(dep, "sink") {
				testedBy[dep] = append(testedBy[dep], strings.TrimPrefix(binary, module))
			}
		}
	}
	if len(testedBy) < 8 {
		t.Errorf("%d sinks were found below %s, want each of them", len(testedBy), sinks)
	}
	for sink, packages := range testedBy {
		t.Logf("%s: the tests of %d packages", sink, len(packages))
		if len(packages) > mostTested {
			t.Errorf("a change in %s runs the tests of %d packages again, want at most %d:\n  %s", sink, len(packages), mostTested, strings.Join(packages, "\n  "))
		}
	}
}

// find returns the chain of imports from pkg to the first package with the prefix, or nil. It does not follow the imports
// of other modules.
func find(imports map[string][]string, pkg, prefix string, seen map[string]bool) []string {
	if seen[pkg] || !strings.HasPrefix(pkg, module) {
		return nil
	}
	seen[pkg] = true
	for _, imp := range imports[pkg] {
		alone, isAlone := strings.CutSuffix(prefix, "/.")
		if imp == alone || !isAlone && (imp == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(imp, strings.TrimSuffix(prefix, "/")+"/")) {
			return []string{pkg, imp}
		}
		if chain := find(imports, imp, prefix, seen); chain != nil {
			return append([]string{pkg}, chain...)
		}
	}
	return nil
}

// A service that imports the producer or the consumer gets the requirements of their module, and not the operator's: each one
// more may move a version that the service has chosen. Weigh it before you raise a number here.
func TestClientRequiresLittle(t *testing.T) {
	page := files(t, "client/go.mod")["dispatcher/client/go.mod"]
	direct, all := []string{}, 0
	for _, line := range requirement.FindAllStringSubmatch(page, -1) {
		if all++; line[3] == "" {
			direct = append(direct, line[1])
		}
	}
	want := []string{"github.com/google/uuid", "github.com/jackc/pgx/v5", "github.com/prometheus/client_golang", "go.opentelemetry.io/otel"}
	if !slices.Equal(direct, want) {
		t.Errorf("the client requires %q, want %q", direct, want)
	}
	if all > 18 {
		t.Errorf("dispatcher/client/go.mod has %d modules, want at most 18", all)
	}
}

// A module that the product and a tool require has one version in both. A fifth of what a new machine compiles for the demo, whose
// Kubernetes has a go.mod of its own, was compiled twice before.
func TestToolsRequireTheVersionsOfTheProduct(t *testing.T) {
	pages, product, shared := files(t, "go.mod"), map[string]string{}, 0
	for _, line := range requirement.FindAllStringSubmatch(pages["go.mod"], -1) {
		product[line[1]] = line[2]
	}
	for path, page := range pages {
		if !strings.HasPrefix(path, "hack/") {
			continue
		}
		versions := map[string]string{}
		for _, line := range requirement.FindAllStringSubmatch(page, -1) {
			versions[line[1]] = line[2] // the last is a replacement's
		}
		for name, version := range versions {
			want, also := product[name]
			if !also {
				continue
			}
			if shared++; version != want {
				t.Errorf("%s has %s %s, and go.mod %s: `go get` the later one where the earlier is, and run `go mod tidy` there", path, name, version, want)
			}
		}
	}
	if shared < 150 {
		t.Errorf("%d modules were compared, want at least 150", shared)
	}
}

// requirement is a line that requires or replaces a module: its path, its version, and the mark of an indirect one.
var requirement = regexp.MustCompile(`(?m)^\t(\S+)(?: => \S+)? (v\S+)( // indirect)?$`)
