package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// explain says what is wrong with a file that could not be read into a Config, each with line, column and the
// field's path. It returns nil when it finds nothing, such as in a file that is not YAML.
func explain(text []byte) error {
	var document yaml3.Node
	if yaml3.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	var e explainer
	e.walk("", document.Content[0], reflect.TypeFor[Config]())
	return errors.Join(e.errs...)
}

type explainer struct{ errs []error }

func (e *explainer) report(at *yaml3.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	e.errs = append(e.errs, fmt.Errorf("line %d, column %d: %s %s", at.Line, at.Column, path, fmt.Sprintf(format, args...)))
}

// walk compares a part of the file with the type that it is for.
func (e *explainer) walk(path string, node *yaml3.Node, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
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
		e.fields(path, node, typ)
	case typ.Kind() == reflect.Slice && node.Kind == yaml3.SequenceNode:
		for i, element := range node.Content {
			e.walk(fmt.Sprintf("%s[%d]", path, i), element, typ.Elem())
		}
	default:
		e.decodeValue(path, node, typ)
	}
}

func (e *explainer) fields(path string, node *yaml3.Node, typ reflect.Type) {
	known := map[string]reflect.Type{}
	for f := range typ.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			known[name] = f.Type
		}
	}
	var seen []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch of, ok := known[key.Value]; {
		case key.Value == "<<": // what it merges is checked where it stands
		case !ok:
			e.report(key, at, "is not a field; correct its name, or remove it")
		case slices.Contains(seen, key.Value):
			e.report(key, at, "is there a second time; remove one")
		default:
			seen = append(seen, key.Value)
			e.walk(at, value, of)
		}
	}
}

// decodeValue decodes one value alone, so that its error has a place.
func (e *explainer) decodeValue(path string, node *yaml3.Node, typ reflect.Type) {
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
	if yaml.Unmarshal(text, reflect.New(typ).Interface()) == nil { // which takes a number as a text
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
