package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// explain says what is wrong with the fields of a file, each with line, column and the field's path. c is what was read
// of it, with the defaults. It returns nil when it finds nothing, such as in a file that is not YAML.
func explain(text []byte, c Config) error {
	var document yaml3.Node
	if yaml3.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	var e explainer
	e.walk("", document.Content[0], reflect.ValueOf(c))
	return errors.Join(e.errs...)
}

type explainer struct{ errs []error }

func (e *explainer) report(at *yaml3.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	e.errs = append(e.errs, fmt.Errorf("line %d, column %d: %s %s", at.Line, at.Column, path, fmt.Sprintf(format, args...)))
}

// walk compares a part of the file with the value that was read of it.
func (e *explainer) walk(path string, node *yaml3.Node, v reflect.Value) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		v = v.Elem()
	}
	typ := v.Type()
	if node.Kind == yaml3.AliasNode {
		node = node.Alias
	}
	_, decodes := reflect.New(typ).Interface().(json.Unmarshaler)
	switch {
	case node.Kind == yaml3.ScalarNode && node.Tag == "!!null":
	case typ.Kind() == reflect.Struct && !decodes:
		if node.Kind != yaml3.MappingNode {
			e.report(node, path, "must have fields of its own; write them below it, or within { }")
			return
		}
		e.fields(path, node, v)
	case typ.Kind() == reflect.Slice && node.Kind == yaml3.SequenceNode:
		for i, element := range node.Content {
			of := reflect.Zero(typ.Elem())
			if i < v.Len() {
				of = v.Index(i)
			}
			e.walk(fmt.Sprintf("%s[%d]", path, i), element, of)
		}
	default:
		e.decodeValue(path, node, v)
	}
}

func (e *explainer) fields(path string, node *yaml3.Node, v reflect.Value) {
	known := map[string]reflect.Value{}
	for f, field := range v.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			known[name] = field
		}
	}
	var seen []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch of, ok := known[key.Value]; {
		case key.Value == "<<": // what it merges is checked where it stands
		case !ok:
			e.report(key, at, "is not a field; %s", Correction(key.Value, slices.Sorted(maps.Keys(known))))
		case slices.Contains(seen, key.Value):
			e.report(key, at, "is there a second time; remove one")
		default:
			seen = append(seen, key.Value)
			e.walk(at, value, of)
		}
	}
}

// Correction is what to do about a name that no field has.
func Correction(name string, known []string) string {
	nearest, least := "", 3
	for _, other := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			nearest, least = other, d
		}
	}
	if nearest == "" {
		return "correct its name, or remove it"
	}
	return "did you mean " + nearest + "?"
}

// distance is how many characters differ between two names: those to add, to remove and to replace.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	for j := range before {
		before[j] = j
	}
	for i := range len(a) {
		now := []int{i + 1}
		for j := range len(b) {
			replaced := before[j]
			if a[i] != b[j] {
				replaced++
			}
			now = append(now, min(replaced, before[j+1]+1, now[j]+1))
		}
		before = now
	}
	return before[len(b)]
}

// decodeValue decodes one value alone, so that its error has a place.
func (e *explainer) decodeValue(path string, node *yaml3.Node, v reflect.Value) {
	typ := v.Type()
	var value any
	if err := node.Decode(&value); err != nil {
		e.report(node, path, "is not YAML; correct it")
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		e.report(node, path, "has a value that JSON does not have; correct it")
		return
	}
	alone := reflect.New(typ)
	if yaml.Unmarshal(text, alone.Interface()) == nil { // which takes a number as a text
		if zero := alone.Elem().IsZero() && (typ.Kind() == reflect.Int || typ.Kind() == reflect.Int32 || typ.Kind() == reflect.Int64); zero && !v.IsZero() {
			e.report(node, path, "is %s; write one that is larger, or leave it out for the default, %v", node.Value, v)
		}
		return
	}
	err = json.Unmarshal(text, reflect.New(typ).Interface())
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		e.report(node, path, "is %s; write %s", wrong.Value, accepted(typ))
	case err != nil:
		e.report(node, path, "has a wrong value: %s", plain(err))
	}
}

// accepted describes the values of a type.
func accepted(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.String:
		return "a text, in quotes if it looks like a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "names with values"
	}
	return "another kind of value"
}
