package engine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A type of the engine or of the pacer has at most 15 fields and 25 methods. Those of a type that it embeds, or is defined by,
// count too.
func TestTypesStaySmall(t *testing.T) {
	const mostFields, mostMethods = 15, 25
	for _, dir := range []string{".", "../internal/pacer"} {
		p := declared(t, dir)
		for name := range p.structs {
			fields, methods := p.fields(name), p.methods(name)
			need.That(t, fields <= mostFields && methods <= mostMethods,
				"%s: type %s has %d fields and %d methods, want at most %d and %d: give a part of them to a type of their own", dir, name, fields, methods, mostFields, mostMethods)
		}
	}
}

// declarations are the struct types of a package, and how many methods each of its types declares.
type declarations struct {
	structs map[string]ast.Expr // a struct, or the name of the type that this one is defined by
	own     map[string]int
}

func declared(t *testing.T, dir string) declarations {
	t.Helper()
	product := func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), dir, product, 0) //nolint:staticcheck // build tags do not matter here
	if err != nil || len(packages) != 1 {
		t.Fatalf("%s has %d packages: %v", dir, len(packages), err)
	}
	d := declarations{map[string]ast.Expr{}, map[string]int{}}
	for _, p := range packages {
		ast.Inspect(p, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				switch n.Type.(type) {
				case *ast.StructType, *ast.Ident:
					d.structs[n.Name.Name] = n.Type
				}
			case *ast.FuncDecl:
				if n.Recv != nil {
					d.own[typeName(n.Recv.List[0].Type)]++
				}
			}
			return true
		})
	}
	return d
}

// typeName is the name of a type of the package, behind a pointer or not; empty for any other.
func typeName(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if name, ok := e.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

func (d declarations) fields(name string) (n int) {
	switch of := d.structs[name].(type) {
	case *ast.Ident:
		return d.fields(of.Name)
	case *ast.StructType:
		for _, f := range of.Fields.List {
			if len(f.Names) == 0 {
				n += max(1, d.fields(typeName(f.Type)))
			}
			n += len(f.Names)
		}
	}
	return n
}

func (d declarations) methods(name string) int {
	n := d.own[name]
	if of, ok := d.structs[name].(*ast.StructType); ok {
		for _, f := range of.Fields.List {
			if len(f.Names) == 0 {
				n += d.methods(typeName(f.Type))
			}
		}
	}
	return n
}
