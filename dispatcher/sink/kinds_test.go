package sink_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// Every kind of sink that a file can have is made, and is in README.md. Each of its fields is read by the
// sink, and is on the kind's page.
//
// CONTRACT: C-100
func TestEveryKind(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	packages := packagesOfKinds(t)
	for _, field := range config.SinkKinds() {
		kind, section := named(field), field.Type.Elem()
		var cfg config.Config
		reflect.ValueOf(&cfg.Sink).Elem().FieldByIndex(field.Index).Set(reflect.New(section))
		if _, err := sink.New(cfg, io.Discard); err != nil && !strings.HasPrefix(err.Error(), "sink."+kind) {
			t.Errorf("%s: an empty section makes %v, want a sink or what is wrong with the section", kind, err)
		}
		if !strings.Contains(string(page), "\n| `"+kind+"` |") {
			t.Errorf("%s: README.md has no row for it", kind)
		}
		used := map[string]bool{}
		for _, dir := range []string{packages[kind], sinks + "files"} {
			selected(t, dir, used)
		}
		if !used["Timeout"] && kind != "log" {
			t.Errorf("%s: nothing in %s reads the timeout", kind, packages[kind])
		}
		own, err := os.ReadFile(kind + ".md")
		if err != nil {
			t.Fatal(err)
		}
		text := string(own)
		if place := "<!-- fields of OutboxDispatcher.spec.sink." + kind + " -->"; !strings.Contains(text, place) {
			t.Errorf("%s.md has no %s", kind, place)
		}
		fields(section, kind, func(path, name string) {
			if !used[name] {
				t.Errorf("sink.%s: nothing in %s or files reads it", path, packages[kind])
			}
			if word := path[strings.LastIndexByte(path, '.')+1:]; !regexp.MustCompile(`\b` + word + `\b`).MatchString(text) {
				t.Errorf("sink.%s: %s.md does not have it; run 'make generate'", path, kind)
			}
		})
	}
}

// What is next to the kind of a sink is read by package files, and is on README.md.
func TestAccessIsRead(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	selected(t, sinks+"files", used)
	for section, typ := range map[string]reflect.Type{"auth": reflect.TypeFor[config.Auth](), "tls": reflect.TypeFor[config.TLS]()} {
		fields(typ, section, func(path, name string) {
			if !used[name] {
				t.Errorf("sink.%s: nothing in files reads it", path)
			}
			if word := path[strings.LastIndexByte(path, '.')+1:]; !regexp.MustCompile(`\b` + word + `\b`).Match(page) {
				t.Errorf("sink.%s: README.md does not have it", path)
			}
		})
	}
}

// sinks is the folder of the packages of all kinds.
const sinks = "../internal/sinks/"

// packagesOfKinds are the packages that sink.go and cloud.go make the kinds with.
func packagesOfKinds(t *testing.T) map[string]string {
	t.Helper()
	packages := map[string]string{}
	inspect := func(n ast.Node) bool {
		c, ok := n.(*ast.CaseClause)
		if !ok || len(c.List) != 1 {
			return true
		}
		kind, ok := c.List[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(kind.Value)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(c, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && packages[name] == "" {
				packages[name] = sinks + fmt.Sprint(call.Fun.(*ast.SelectorExpr).X)
			}
			return true
		})
		return false
	}
	for _, file := range []string{"sink.go", "cloud.go"} {
		ast.Inspect(parse(t, file), inspect)
	}
	return packages
}

// selected adds the names that a package's code selects, such as Timeout of cfg.Timeout.
func selected(t *testing.T, dir string, names map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code in %q: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				names[s.Sel.Name] = true
			}
			return true
		})
	}
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fields visits the fields of a section that have values, but [config.Access], which is not in the section. What iam
// has, package database reads.
func fields(typ reflect.Type, path string, see func(path, name string)) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if named(f) == "-" {
			continue
		}
		at, inner := path+"."+named(f), f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case inner == reflect.TypeFor[config.IAM]():
		case inner.Kind() == reflect.Struct:
			fields(inner, at, see)
		default:
			see(at, f.Name)
		}
	}
}

func named(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
