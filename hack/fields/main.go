// Command fields writes the tables of fields in the pages, from the schemas of charts/outbox-operator/files/crds. A page has such a table
// between two comments:
//
//	<!-- fields of OutboxDispatcher.spec without sink, database -->
//	<!-- end of fields -->
//
// The table has a row for every field below the path; the fields below those after "without", and those of a
// SecretRef or ConfigMapRef, have none. The order is
// that of the Go types.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "hack/fields:", err)
		os.Exit(1)
	}
}

// generate writes the tables of all pages of the checkout in root.
func generate(root string) error {
	kinds, err := load(filepath.Join(root, "charts", "outbox-operator", "files", "crds"))
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ".git":
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		page, err := kinds.write(before)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if bytes.Equal(page, before) {
			return nil
		}
		return os.WriteFile(path, page, 0o644)
	})
}

// field is a Go type and its schema.
type field struct {
	kind   reflect.Type
	schema apiextensionsv1.JSONSchemaProps
}

// kinds are the kinds of the API, by name.
type kinds map[string]field

// load reads the schemas of the kinds from the CRDs in dir.
func load(dir string) (kinds, error) {
	all := kinds{}
	for _, object := range []any{v1alpha1.OutboxDispatcher{}, v1alpha1.Outbox{}, v1alpha1.DeadLetterReplay{}, v1alpha1.OutboxConsumer{}} {
		all[reflect.TypeOf(object).Name()] = field{kind: reflect.TypeOf(object)}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		kind, known := all[crd.Spec.Names.Kind]
		if !known {
			return nil, fmt.Errorf("%s: kind %q has no type in the list of load; add it", file, crd.Spec.Names.Kind)
		}
		kind.schema = *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		all[crd.Spec.Names.Kind] = kind
	}
	return all, nil
}

var table = regexp.MustCompile(`(?s)(<!-- fields of (\w+)\.([\w.]+)(?: without ([^>]+?))? -->\n).*?(<!-- end of fields -->)`)

// write returns the page with its tables.
func (all kinds) write(page []byte) (_ []byte, err error) {
	page = table.ReplaceAllFunc(page, func(found []byte) []byte {
		m := table.FindSubmatch(found)
		f, wrong := all.find(string(m[2]), string(m[3]))
		if err = errors.Join(err, wrong); err != nil {
			return found
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s| field | default | meaning |\n|---|---|---|\n", m[1])
		f.rows(&b, "", strings.FieldsFunc(string(m[4]), func(r rune) bool { return strings.ContainsRune(", \n", r) }))
		return append([]byte(b.String()), m[5]...)
	})
	return page, err
}

// find returns the field of the kind at the path.
func (all kinds) find(kind, path string) (field, error) {
	f, known := all[kind]
	if !known {
		return field{}, fmt.Errorf("%q is not a kind", kind)
	}
	for name := range strings.SplitSeq(path, ".") {
		members := f.members()
		i := slices.IndexFunc(members, func(m member) bool { return m.name == name })
		if i < 0 {
			return field{}, fmt.Errorf("%s has no field %s", kind, path)
		}
		f = members[i].field
	}
	return f, nil
}

// member is a field of an object or of a list's items.
type member struct {
	field
	name     string
	required bool
}

// members returns the fields in the order of the Go type; none for a type that has no schema of its own.
func (f field) members() (all []member) {
	kind, schema := f.kind, f.schema
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if schema.Items != nil {
		schema = *schema.Items.Schema
	}
	if kind.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(kind) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if s, has := schema.Properties[name]; has {
			all = append(all, member{field{f.Type, s}, name, slices.Contains(schema.Required, name)})
		}
	}
	return all
}

// rows writes a row for each field below f, whose path is given.
func (f field) rows(b *strings.Builder, path string, without []string) {
	for _, m := range f.members() {
		at := strings.TrimPrefix(path+"."+m.name, ".")
		fmt.Fprintf(b, "| `%s` |%s | %s |\n", at, m.byDefault(), m.meaning())
		if slices.Contains(without, at) || m.isReference() {
			continue
		}
		if m.schema.Items != nil {
			at += "[]"
		}
		m.rows(b, at, without)
	}
}

// isReference reports whether the field names a key, which each page explains once.
func (m member) isReference() bool {
	kind := m.kind
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	return kind == reflect.TypeFor[spec.SecretRef]() || kind == reflect.TypeFor[spec.ConfigMapRef]()
}

// byDefault is the cell of the default, with a space before it.
func (m member) byDefault() string {
	switch {
	case m.required:
		return " required"
	case m.schema.Default == nil || m.schema.Type == "object":
		return ""
	}
	return " `" + strings.Trim(string(m.schema.Default.Raw), `"`) + "`"
}

var (
	defaultsTo = regexp.MustCompile(` Defaults to \S+\.(?: |$)`)
	cell       = strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;")
)

// meaning is the description without the name of the field and the default, which have columns of their own.
func (m member) meaning() string {
	text := strings.TrimPrefix(strings.Join(strings.Fields(m.schema.Description), " "), m.name+" ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are ")
	text = strings.TrimSpace(defaultsTo.ReplaceAllString(text, " "))
	if s := m.schema; s.MaxItems != nil && !strings.Contains(text, fmt.Sprintf("At most %d.", *s.MaxItems)) {
		text += fmt.Sprintf(" At most %d.", *s.MaxItems)
	}
	return cell.Replace(text)
}
