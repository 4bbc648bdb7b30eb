package hack

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// apiFile has each name that an importing module can use.
const apiFile = "api.golden"

// A name is exported on purpose: what is new in a public package is a line of the golden file.
// UPDATE_GOLDEN=1 go test ./hack -run TestPublicNamesAreListed writes it.
func TestPublicNamesAreListed(t *testing.T) {
	folders := map[string]bool{}
	for name := range files(t, ".go") {
		if dir := path.Dir(name); !strings.HasPrefix(dir, "hack") && !strings.Contains(dir+"/", "/internal/") && !strings.Contains(dir+"/", "/cmd/") {
			folders[dir] = true
		}
	}
	var out strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		for _, line := range exported(t, dir) {
			fmt.Fprintf(&out, "%s: %s\n", dir, line)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		need.OK(t, os.WriteFile(apiFile, []byte(out.String()), 0o600))
		return
	}
	listed, err := os.ReadFile(apiFile)
	need.OK(t, err)
	want, got := strings.Split(string(listed), "\n"), strings.Split(out.String(), "\n")
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("hack/%s has no line %q; write it with UPDATE_GOLDEN=1 if users need the name, or do not export it", apiFile, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("hack/%s has %q, which is not exported any more", apiFile, line)
		}
	}
}

// exported are the names of a package and the methods of its types.
func exported(t *testing.T, dir string) (lines []string) {
	t.Helper()
	set := token.NewFileSet()
	packages, err := parser.ParseDir(set, "../"+dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // syntax is enough
	need.OK(t, err)
	values := func(kind string, all []*doc.Value) {
		for _, v := range all {
			for _, name := range v.Names {
				if ast.IsExported(name) {
					lines = append(lines, kind+" "+name)
				}
			}
		}
	}
	functions := func(before string, all []*doc.Func) {
		for _, f := range all {
			lines = append(lines, "func "+before+f.Name)
		}
	}
	for _, parsed := range packages {
		p := doc.New(parsed, dir, 0)
		values("const", p.Consts)
		values("var", p.Vars)
		functions("", p.Funcs)
		for _, typ := range p.Types {
			lines = append(lines, "type "+typ.Name)
			values("const", typ.Consts)
			values("var", typ.Vars)
			functions("", typ.Funcs)
			functions(typ.Name+".", typ.Methods)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
