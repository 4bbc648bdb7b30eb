// Package schema has the CustomResourceDefinitions that the program embeds, and checks objects by them: types, bounds,
// enums, lists, defaults and unknown fields, each with the API server's words. Package rules adds the rules in CEL.
package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/charts/outbox-operator/files/crds"
)

// Schema is what a definition says of a value.
type Schema struct {
	Type        string             `json:"type"`
	Properties  map[string]*Schema `json:"properties"`
	Items       *Schema            `json:"items"`
	Required    []string           `json:"required"`
	Enum        []any              `json:"enum"`
	Minimum     *float64           `json:"minimum"`
	Maximum     *float64           `json:"maximum"`
	MinLength   *int               `json:"minLength"`
	MaxLength   *int               `json:"maxLength"`
	MinItems    *int               `json:"minItems"`
	MaxItems    *int               `json:"maxItems"`
	Default     any                `json:"default"`
	ListType    string             `json:"x-kubernetes-list-type"`
	ListMapKeys []string           `json:"x-kubernetes-list-map-keys"`
	IntOrString bool               `json:"x-kubernetes-int-or-string"`
	Preserve    bool               `json:"x-kubernetes-preserve-unknown-fields"`
	Rules       []*Rule            `json:"x-kubernetes-validations"`
}

// Rule is a condition in CEL.
type Rule struct {
	Rule      string `json:"rule"`
	Message   string `json:"message"`
	FieldPath string `json:"fieldPath"`
}

// kinds are the schemas by the names of their kinds. Each is read when it is used.
var kinds = map[string]func() *Schema{
	"OutboxDispatcher": read("outboxdispatchers"),
	"Outbox":           read("outboxes"),
	"OutboxConsumer":   read("outboxconsumers"),
	"DeadLetterReplay": read("deadletterreplays"),
}

// read returns the function that reads the definition of a plural, once.
func read(plural string) func() *Schema {
	return sync.OnceValue(func() *Schema {
		text, err := crds.Files.ReadFile("outbox.dev_" + plural + ".yaml")
		var definition struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema *Schema `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err == nil {
			err = yaml.Unmarshal(text, &definition)
		}
		if err != nil || len(definition.Spec.Versions) == 0 {
			panic(fmt.Sprintf("definition of %s: %v", plural, err)) // a file of this program
		}
		s := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
		s.Properties["metadata"] = &Schema{Type: "object", Preserve: true}
		s.settle()
		return s
	})
}

// settle makes the defaults as [Decode] makes them.
func (s *Schema) settle() {
	if s.Default != nil {
		s.Default = clone(s.Default)
	}
	for _, of := range s.Properties {
		of.settle()
	}
	if s.Items != nil {
		s.Items.settle()
	}
}

// Of returns the schema of a kind, nil for a kind of others.
func Of(kind string) *Schema {
	if schema := kinds[kind]; schema != nil {
		return schema()
	}
	return nil
}

// Problem is one thing that is wrong with an object.
type Problem struct {
	// Path is the field, such as spec.sink. It is empty for the whole object.
	Path string
	// Message is what the API server says of it, with the remedy where a rule has one.
	Message string
}

const (
	// required is the message about a field that is missing.
	required = "Required value"
	// mostChecked is the largest spec that Missing looks into: 256 KiB, and a pod template of 64.
	mostChecked = 320 << 10
)

// Error is the path and the message, as the API server writes them.
func (p Problem) Error() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Check sets the defaults in an object, and returns what is wrong with it but for the rules in CEL, and whether these are to
// be evaluated. The object is as [Decode] makes it. As on the API server, unknown fields are all that is reported of an
// object that has some, and rules are evaluated unless a value is missing, too long or not one of those that there are.
func (s *Schema) Check(object any) (all []Problem, evaluate bool) {
	s.check("", object, func(path, format string, args ...any) { all = append(all, Problem{path, fmt.Sprintf(format, args...)}) })
	if unknown := slices.DeleteFunc(slices.Clone(all), func(p Problem) bool { return p.Path != "" }); len(unknown) > 0 {
		return unknown, false
	}
	return all, !slices.ContainsFunc(all, Problem.blocks)
}

// Missing returns the path of the first field that the definition of a kind requires and the spec of an object does not have, empty
// for none. Of two of which a rule requires one, the first is missing. What is larger than the operator works on is not looked into.
func Missing(kind string, spec any) string {
	text := encode(map[string]any{"spec": spec})
	if len(text) > mostChecked {
		return ""
	}
	object := map[string]any{}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		panic(fmt.Sprintf("decode the spec of a %s: %v", kind, err)) // JSON that was just encoded
	}
	one, of := map[string][2]string{"OutboxDispatcher": {"database", "outboxRef"}, "Outbox": {"secretRef", "server"}}[kind], numbers(object["spec"]).(map[string]any)
	if one[0] != "" && of[one[0]] == nil && of[one[1]] == nil {
		of[one[0]] = map[string]any{}
	}
	all, _ := Of(kind).Check(object)
	if i := slices.IndexFunc(all, func(p Problem) bool { return p.Message == required }); i >= 0 {
		return all[i].Path
	}
	return ""
}

// Compact returns a valid object, of values of JSON, without those that [Schema.Check] sets by default, and with the lists sorted
// whose order has no meaning. So objects that say the same are the same, and have no field without a use.
func (s *Schema) Compact(object any) any {
	object = clone(object)
	s.compact(object)
	return object
}

func (s *Schema) compact(v any) {
	switch x := v.(type) {
	case map[string]any:
		for name, of := range s.Properties {
			if x[name] == nil {
				continue
			}
			if of.compact(x[name]); of.Default != nil && reflect.DeepEqual(x[name], of.Compact(of.Default)) {
				delete(x, name)
			}
		}
	case []any:
		for _, item := range x {
			s.Items.compact(item)
		}
		if s.ListType == "set" || s.ListType == "map" {
			slices.SortFunc(x, func(a, b any) int { return strings.Compare(encode(s.key(a)), encode(s.key(b))) })
		}
	}
}

// blocks reports whether the rules are not evaluated with this problem.
func (p Problem) blocks() bool {
	for _, begins := range []string{"Required", "Too long", "Too many", "Unsupported"} {
		if strings.HasPrefix(p.Message, begins) {
			return true
		}
	}
	return strings.Contains(p.Message, " in body must be of type ")
}

// Decode reads YAML or JSON into the values that [Schema.Check] takes: whole numbers are int64. It fails as the decoder of
// YAML does, and for a field that is there twice.
func Decode(text []byte) (object any, err error) {
	text, err = yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	err = decoder.Decode(&object)
	return numbers(object), err
}

func numbers(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for name := range x {
			x[name] = numbers(x[name])
		}
	case []any:
		for i := range x {
			x[i] = numbers(x[i])
		}
	case json.Number:
		if i, err := x.Int64(); err == nil {
			return i
		}
		f, _ := x.Float64() // JSON has no number that is none
		return f
	}
	return v
}

type report func(path, format string, args ...any)

// at is the path of a member.
func at(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// check compares a value with the schema but for its rules, and sets the defaults of its members.
func (s *Schema) check(path string, v any, r report) {
	if !s.takes(v) {
		r(path, "Invalid value: %q: %s in body must be of type %s: %q", typeOf(v), path, s.Type, typeOf(v))
		return
	}
	switch x := v.(type) {
	case map[string]any:
		s.checkMembers(path, x, r)
	case []any:
		s.checkItems(path, x, r)
	case string:
		if n := utf8.RuneCountInString(x); s.MaxLength != nil && n > *s.MaxLength {
			r(path, "Too long: may not be more than %d bytes", *s.MaxLength)
		} else if s.MinLength != nil && n < *s.MinLength {
			r(path, "Invalid value: %q: %s in body should be at least %d chars long", x, path, *s.MinLength)
		}
	case int64, float64:
		n := number(v)
		if s.Minimum != nil && n < *s.Minimum {
			r(path, "Invalid value: %v: %s in body should be greater than or equal to %v", v, path, int64(*s.Minimum))
		}
		if s.Maximum != nil && n > *s.Maximum {
			r(path, "Invalid value: %v: %s in body should be less than or equal to %v", v, path, int64(*s.Maximum))
		}
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		words := make([]string, len(s.Enum))
		for i, e := range s.Enum {
			words[i] = fmt.Sprintf("%q", e)
		}
		r(path, "Unsupported value: %q: supported values: %s", v, strings.Join(words, ", "))
	}
}

// takes reports whether a value is of the schema's type.
func (s *Schema) takes(v any) bool {
	is := typeOf(v)
	return is == s.Type || is == "integer" && s.Type == "number" || s.IntOrString && (is == "integer" || is == "string")
}

func (s *Schema) checkMembers(path string, members map[string]any, r report) {
	for name, of := range s.Properties {
		if members[name] == nil { // the API server takes a null for a field that is not set
			delete(members, name)
			if of.Default != nil {
				members[name] = clone(of.Default)
			}
		}
	}
	for _, name := range s.Required {
		if _, ok := members[name]; !ok {
			r(at(path, name), required)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if of := s.Properties[name]; of != nil {
			of.check(at(path, name), members[name], r)
		} else if !s.Preserve {
			r("", "unknown field %q", at(path, name))
		}
	}
}

func (s *Schema) checkItems(path string, items []any, r report) {
	if s.MaxItems != nil && len(items) > *s.MaxItems {
		r(path, "Too many: %d: must have at most %d items", len(items), *s.MaxItems)
	}
	if s.MinItems != nil && len(items) < *s.MinItems {
		r(path, "Invalid value: %d: %s in body should have at least %d items", len(items), path, *s.MinItems)
	}
	seen := map[string]bool{}
	for i, item := range items {
		field := fmt.Sprintf("%s[%d]", path, i)
		s.Items.check(field, item, r)
		if s.ListType != "set" && s.ListType != "map" {
			continue
		}
		if name := encode(s.key(item)); seen[name] {
			r(field, "Duplicate value: %s", name)
		} else {
			seen[name] = true
		}
	}
}

// key is what differs between the items of a set or a map.
func (s *Schema) key(item any) any {
	members, ok := item.(map[string]any)
	if !ok || s.ListType != "map" {
		return item
	}
	keys := map[string]any{}
	for _, name := range s.ListMapKeys {
		keys[name] = members[name]
	}
	return keys
}

// typeOf is the type of a value, as schemas name it.
func typeOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "number"
	}
	return "null"
}

func number(v any) float64 {
	if i, ok := v.(int64); ok {
		return float64(i)
	}
	return v.(float64)
}

// encode is the JSON of a value that came from JSON.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// clone copies a value of JSON, with whole numbers as int64.
func clone(v any) any {
	switch x := v.(type) {
	case map[string]any:
		c := map[string]any{}
		for name := range x {
			c[name] = clone(x[name])
		}
		return c
	case []any:
		c := make([]any, len(x))
		for i := range x {
			c[i] = clone(x[i])
		}
		return c
	case float64:
		if i := int64(x); float64(i) == x {
			return i
		}
	}
	return v
}
