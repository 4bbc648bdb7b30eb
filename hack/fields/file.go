package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// fileTable is the place of a table of the fields that a dispatcher's file has and the resource does not, such as
// the file of a Secret's key:
//
//	<!-- file fields of sink.kafka -->
//	<!-- end of fields -->
var fileTable = regexp.MustCompile(`(?s)(<!-- file fields of ([\w.]+) -->\n).*?(<!-- end of fields -->)`)

// comments are the comments of the fields of package config, by Type.Field.
type comments map[string]string

// loadComments reads them. A field without one has that of the field before it. It returns an error when the
// package cannot be parsed.
func loadComments(dir string) (comments, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	all := comments{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if fields, ok := typ.Type.(*ast.StructType); ok {
				text := ""
				for _, f := range fields.Fields.List {
					if own := strings.Join(strings.Fields(f.Doc.Text()), " "); own != "" {
						text = own
					}
					for _, name := range f.Names {
						all[typ.Name.Name+"."+name.Name] = text
					}
				}
			}
			return false
		})
	}
	return all, nil
}

// writeFile returns the page with its tables of file fields. It returns an error for a path that the file does not
// have.
func (all kinds) writeFile(page []byte, text comments) (_ []byte, err error) {
	page = fileTable.ReplaceAllFunc(page, func(found []byte) []byte {
		m := fileTable.FindSubmatch(found)
		typ := reflect.TypeFor[spec.Config]()
		for name := range strings.SplitSeq(string(m[2]), ".") {
			f, has := fileField(typ, name)
			if !has {
				err = errors.Join(err, fmt.Errorf("a dispatcher's file has no field %s", m[2]))
				return found
			}
			typ = f.Type
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s| in the file | meaning |\n|---|---|\n", m[1])
		all.fileRows(&b, typ, "spec."+string(m[2]), "", text)
		return append([]byte(b.String()), m[3]...)
	})
	return page, err
}

// fileRows writes a row for each field of typ that the resource does not have at base.
func (all kinds) fileRows(b *strings.Builder, typ reflect.Type, base, path string, text comments) {
	typ = structOf(typ)
	for f := range typ.Fields() {
		if jsonName(f) == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+jsonName(f), ".")
		_, err := all.find("OutboxDispatcher", base+"."+at)
		if err != nil && structOf(f.Type).Kind() != reflect.Struct {
			meaning := text[typ.Name()+"."+f.Name]
			for other := range typ.Fields() {
				meaning = regexp.MustCompile(`\b`+other.Name+`\b`).ReplaceAllString(meaning, "`"+jsonName(other)+"`")
			}
			fmt.Fprintf(b, "| `%s` | %s |\n", at, cell.Replace(meaning))
		}
		if structOf(f.Type).Kind() == reflect.Struct {
			all.fileRows(b, f.Type, base, at, text)
		}
	}
}

func structOf(typ reflect.Type) reflect.Type {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	return typ
}

func fileField(typ reflect.Type, name string) (reflect.StructField, bool) {
	typ = structOf(typ)
	for i := range typ.NumField() {
		if f := typ.Field(i); jsonName(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
