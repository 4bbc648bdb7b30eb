package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func decode(t *testing.T, payload string) any {
	t.Helper()
	v, err := expression.Decode([]byte(payload))
	need.OK(t, err)
	return v
}

func violations(t *testing.T, s *jsonSchema, payload string) []violation {
	t.Helper()
	all, err := s.violations(t.Context(), decode(t, payload), len(payload))
	need.OK(t, err)
	return all
}

// CONTRACT: C-72, C-73
// REQUIREMENT: STORAGE-38
func TestViolationsNameThePlaceAndNoValue(t *testing.T) {
	const people = `"type": "object", "additionalProperties": {"type": "object", "required": ["age"], "properties": {"age": {"minimum": 18}}}`
	for _, c := range []struct {
		schema, payload string
		want            []string
	}{
		{`{"type": "object"}`, `{}`, nil},
		{`{"type": "object"}`, `[]`, []string{"at the payload itself: #/type (object, not array)"}},
		{`{"required": ["id", "total"]}`, `{"id": 1}`, []string{"at the payload itself: #/required (total)"}},
		{`{"properties": {"a": {"properties": {"b": {"enum": ["x", "y"]}}}}}`, `{"a": {"b": "SECRET"}}`, []string{"at /a/b: #/properties/a/properties/b/enum"}},
		{`{"properties": {"a/b": {"const": 1}}}`, `{"a/b": "SECRET"}`, []string{"at /a~1b: #/properties/a~1b/const"}},
		{`{"properties": {"n": {"minimum": 3, "multipleOf": 2}}}`, `{"n": 1}`, []string{"at /n: #/properties/n/minimum", "at /n: #/properties/n/multipleOf"}},
		{`{"properties": {"s": {"pattern": "^[0-9]+$", "maxLength": 3}}}`, `{"s": "SECRET"}`, []string{"at /s: #/properties/s/maxLength", "at /s: #/properties/s/pattern"}},
		{`{"additionalProperties": false, "properties": {"a": {}}}`, `{"a": 1, "SECRET": 2}`, []string{"at the payload itself: #/additionalProperties"}},
		{`{"propertyNames": {"maxLength": 3}}`, `{"SECRET": 2}`, []string{"at the payload itself: #/propertyNames"}},
		{`{"patternProperties": {"^S": {"type": "string"}}}`, `{"SECRET": 2}`, []string{"at /*: #/patternProperties/^S/type (string, not number)"}},
		{`{` + people + `}`, `{"SECRET": {"age": 3}}`, []string{"at /*/age: #/additionalProperties/properties/age/minimum"}},
		{`{` + people + `}`, `{"SECRET": {}}`, []string{"at /*: #/additionalProperties/required (age)"}},
		{`{"items": {"items": {"type": "number"}}}`, `[[1], [1, "SECRET"]]`, []string{"at /1/1: #/items/items/type (number, not string)"}},
		{`{"additionalProperties": {"type": "number"}}`, `{"4111111111111111": "SECRET"}`, []string{"at /*: #/additionalProperties/type (number, not string)"}},
		{`{"uniqueItems": true}`, `["SECRET", "SECRET"]`, []string{"at the payload itself: #/uniqueItems"}},
		{`{"contains": {"const": 1}}`, `["SECRET"]`, []string{"at /0: #/contains/const"}},
		{`{"not": {"required": ["a"]}}`, `{"a": "SECRET"}`, []string{"at the payload itself: #/not"}},
		{`{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}`, `{}`, []string{"at the payload itself: #/oneOf/0/required (a)", "at the payload itself: #/oneOf/1/required (b)"}},
		{`{"oneOf": [{}, {}]}`, `{}`, []string{"at the payload itself: #/oneOf"}},
		{`{"properties": {"a": false}}`, `{"a": "SECRET"}`, []string{"at /a: #/properties/a"}},
		{`{"$defs": {"id": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/id"}}}`, `{"a": 1}`, []string{"at /a: #/$defs/id/type (string, not number)"}},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"e": {"format": "email"}}}`, `{"e": "SECRET"}`, []string{"at /e: #/properties/e/format"}},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "number"}], "additionalItems": false}`, `[1, "SECRET"]`, []string{"at the payload itself: #/additionalItems"}},
		{`{"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "number"}], "items": false}`, `[1, "SECRET"]`, []string{"at /1: #/items"}},
		{`{"dependentRequired": {"card": ["name"]}}`, `{"card": "SECRET"}`, []string{"at the payload itself: #/dependentRequired/card"}},
		{`{"unevaluatedProperties": false}`, `{"SECRET": 1}`, []string{"at /*: #/unevaluatedProperties"}},
		{`{"$id": "https://example.com/order.json", "type": "string"}`, `1`, []string{"at the payload itself: #/type (string, not number)"}},
		{`{"properties": {"a": {"minimum": 9007199254740993}}}`, `{"a": 9007199254740992}`, []string{"at /a: #/properties/a/minimum"}},
	} {
		s, err := compileSchema([]byte(c.schema), nil)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		var got []string
		for _, v := range violations(t, s, c.payload) {
			got = append(got, v.text)
		}
		need.WantAll(t, c.want, "%s for %s:\ngot  %q\nwant %q", got, c.schema, c.payload)
	}
}

func TestWrongSchemasAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                                       "it is not JSON: EOF; correct it",
		`{"type": "objekt"}`:                     "it is not a JSON Schema: ",
		`{"minimum": "3"}`:                       "it is not a JSON Schema: ",
		`{"pattern": "("}`:                       "it is not a JSON Schema: ",
		`{"$ref": "http://127.0.0.1:1/a.json"}`:  "it is not among the schema's references, and nothing is loaded from elsewhere",
		`{"$ref": "file:///etc/passwd"}`:         "it is not among the schema's references",
		`{"$ref": "other.json"}`:                 "it is not among the schema's references",
		`{"$ref": "#/$defs/missing"}`:            "it is not a JSON Schema: ",
		`{"$schema": "http://127.0.0.1:1/meta"}`: "it is not among the schema's references",
	} {
		_, err := compileSchema([]byte(text), nil)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%s: error %v\nwant %s", text, err, want)
	}
	if _, err := compileSchema([]byte(`{}`), []Reference{{"a.json", "{"}}); err == nil || !strings.HasPrefix(err.Error(), "its reference a.json is not JSON") {
		t.Errorf("a reference: %v", err)
	}
}

// A registry's references are found by their names, from wherever the schema says that it stands.
func TestReferencesResolveByName(t *testing.T) {
	references := []Reference{
		{"customer.json", `{"properties": {"address": {"$ref": "address.json"}}}`},
		{"address.json", `{"required": ["city"]}`},
		{"https://example.com/money.json", `{"type": "number"}`},
	}
	for _, id := range []string{"", `"$id": "https://example.com/shop/order.json", `, `"$id": "order.json", `} {
		s, err := compileSchema([]byte(`{`+id+`"properties": {"customer": {"$ref": "customer.json"}, "total": {"$ref": "https://example.com/money.json"}}}`), references)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		got := fmt.Sprint(violations(t, s, `{"customer": {"address": {}}, "total": "SECRET"}`))
		need.That(t, strings.Contains(got, "at /customer/address: ") && strings.Contains(got, "address.json#/required (city)") && strings.Contains(got, "at /total: "),
			"%s: %s", id, got)
	}
}

// Whatever the schema and the payload: no violation has a text of the payload, neither a value nor the name of a
// member that the schema does not name. All schemas are of words that begin with s, all payloads of
// words that begin with p, but for a few names that both have.
//
// CONTRACT: C-72, C-73
func TestViolationsHaveNoTextOfThePayload(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	invalid := 0
	for range 5000 {
		text, err := json.Marshal(randomSchema(r, 4))
		need.OK(t, err)
		s, err := compileSchema(text, nil)
		need.Must(t, err == nil, "%s: %v", text, err)
		payload, err := json.Marshal(randomValue(r, 4))
		need.OK(t, err)
		found := violations(t, s, string(payload))
		if len(found) > 0 {
			invalid++
		}
		for _, violation := range found {
			if text := fmt.Sprint(violation); strings.Contains(text, "pSECRET") || strings.Contains(text, "7777") {
				t.Fatalf("schema %s\npayload %s\nviolation %+v has a text of the payload", text, payload, violation)
			}
		}
	}
	need.That(t, invalid >= 1000, "only %d payloads were invalid", invalid)
}

func randomSchema(r *rand.Rand, depth int) any {
	if depth == 0 {
		return r.IntN(4) > 0
	}
	sub := func() any { return randomSchema(r, depth-1) }
	s := map[string]any{}
	for range 1 + r.IntN(3) {
		switch r.IntN(22) {
		case 0:
			s["type"] = []string{"object", "array", "string", "number", "boolean"}[r.IntN(5)]
		case 1:
			s["enum"] = []any{"s1", 3}
		case 2:
			s["const"] = "s2"
		case 3:
			s["properties"] = map[string]any{"both": sub(), "s3": sub()}
		case 4:
			s["required"] = []string{"both", "s4"}
		case 5:
			s["additionalProperties"] = sub()
		case 6:
			s["patternProperties"] = map[string]any{"S": sub()}
		case 7:
			s["propertyNames"] = map[string]any{"maxLength": 3, "enum": []any{"both"}}
		case 8:
			s["items"] = sub()
		case 9:
			s["prefixItems"] = []any{sub(), sub()}
		case 10:
			s["contains"] = sub()
		case 11:
			s["uniqueItems"] = true
		case 12:
			s["maxItems"], s["minProperties"] = 1, 2
		case 13:
			s["pattern"], s["maxLength"] = "^s", 2
		case 14:
			s["minimum"], s["multipleOf"] = 1e9, 3
		case 15:
			s["format"] = "email"
		case 16:
			s["allOf"] = []any{sub(), sub()}
		case 17:
			s["anyOf"] = []any{sub(), sub()}
		case 18:
			s["oneOf"] = []any{sub(), sub()}
		case 19:
			s["not"] = sub()
		case 20:
			s["if"], s["then"], s["else"] = sub(), sub(), sub()
		case 21:
			s["dependentRequired"], s["unevaluatedProperties"] = map[string]any{"both": []string{"s5"}}, false
		}
	}
	if depth == 4 && r.IntN(2) == 0 {
		s["$schema"] = "http://json-schema.org/draft-07/schema#"
		delete(s, "prefixItems")
	}
	return s
}

func randomValue(r *rand.Rand, depth int) any {
	kind := r.IntN(8)
	if depth == 0 {
		kind = r.IntN(4)
	}
	switch kind {
	case 0:
		return "pSECRET"
	case 1:
		return 7777
	case 2:
		return r.IntN(2) == 0
	case 3:
		return nil
	case 4, 5:
		return map[string]any{"both": randomValue(r, depth-1), "pSECRET" + fmt.Sprint(r.IntN(3)): randomValue(r, depth-1), "7777": 1}
	default:
		return []any{randomValue(r, depth-1), randomValue(r, depth-1)}
	}
}

// schemaFile makes a pipeline with a schema in a file. It looks at the file at each call.
func schemaFile(t *testing.T, text string) (p *Pipeline, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "schema.json")
	write(t, path, text)
	p, err := New(spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Schema: &spec.PayloadSchema{File: path}}}}}}, Options{})
	need.OK(t, err)
	p.checks[0].schema.(*filed).watched.Every = 0
	return p, path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	need.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// A schema's file that changes is used from the next event on, and one that is wrong leaves the schema before it.
//
// CONTRACT: C-72, C-101
func TestSchemaFileIsReadAgain(t *testing.T) {
	p, path := schemaFile(t, `{"required": ["a"]}`)
	holds := func(name string) {
		t.Helper()
		s, err := p.checks[0].schema.get(context.Background())
		need.OK(t, err)
		need.That(t, len(violations(t, s, `{"`+name+`": 1}`)) == 0 && len(violations(t, s, `{}`)) != 0, "the schema that requires %s is not used", name)
	}
	problem := func(want string) {
		t.Helper()
		switch got := p.FileProblems(); {
		case want == "" && len(got) != 0:
			t.Errorf("problems: %v, want none", got)
		case want != "" && (len(got) != 1 || got[0].Field != "message.validation[0].schema.file" || !strings.Contains(got[0].Err.Error(), want) || got[0].Since.IsZero()):
			t.Errorf("problems: %v, want one with %q", got, want)
		}
	}
	holds("a")
	problem("")
	for _, c := range []struct{ text, want string }{
		{"{\n  \"type\": [\"objekt\"]\n}", path + ": it is not a JSON Schema: line 2, column 11: at /type: value must be one of"},
		{"{\n  \"required\": [\"b\"],,\n}", "line 2, column 21: it is not JSON: invalid character ','"},
		{`{"required": ["b"]`, "line 1, column 19: it is not JSON"},
		{"{\"properties\": {\"a/b\":\n {\"pattern\": \"(\"}}}", "line 2, column 14: error parsing regexp: missing closing )"},
		{"{\"items\":\n {\"patternProperties\": {\"a\": {},\n \"a{1001}\": {}}}}", "line 3, column 13: error parsing regexp: invalid repeat count"},
		{`{"pattern": "(` + strings.Repeat("a", 300) + `){1000}"}`, "have 302001 states with it, and may have 50000"},
		{`{"title": "` + strings.Repeat("a", MaxSchemas) + `"}`, "bytes with it, and may have 262144"},
	} {
		write(t, path, c.text)
		problem(c.want)
		holds("a")
	}
	need.OK(t, os.Remove(path))
	problem("no such file or directory; name a file that can be read")
	holds("a")
	write(t, path, `{"required": ["b"]}`)
	holds("b")
	problem("")
}

// What a schema or an expression costs is known before it is compiled: a short text cannot take the memory of a
// pod.
//
// CONTRACT: C-35
func TestPatternsAreBounded(t *testing.T) {
	expands := "(" + strings.Repeat("a", 300) + "){1000}"
	var schemas, rules, large []spec.Validation
	for range 11 { // 3.3 KB that take 240 MiB when they are compiled
		schemas = append(schemas, spec.Validation{Schema: &spec.PayloadSchema{Inline: `{"pattern": "` + expands + `"}`}})
		rules = append(rules, spec.Validation{Rules: []spec.Rule{{Rule: `matches(payload.a, "` + expands + `")`, Message: "a"}}})
	}
	var small []spec.Validation
	for range 6 { // each is within what an expression may have
		small = append(small, spec.Validation{Rules: []spec.Rule{{Rule: `matches(payload.a, "(aaaaaaaa){900}")`, Message: "a"}}})
	}
	for range 5 {
		large = append(large, spec.Validation{Schema: &spec.PayloadSchema{Inline: `{"title": "` + strings.Repeat("a", 60<<10) + `"}`}})
	}
	for name, c := range map[string]struct {
		all  []spec.Validation
		want string
	}{
		"schemas":      {schemas, "message.validation[0].schema.inline: the regular expressions of this dispatcher have 302001 states with it, and may have 50000"},
		"rules":        {rules, "message.validation[0].rules[0].rule: line 1, column 8: a regular expression has too many states: 10000 at most"},
		"many rules":   {small, "message.validation[5].rules[0].rule: the regular expressions of this dispatcher have"},
		"many schemas": {large, "message.validation[4].schema.inline: the schemas of this dispatcher have"},
		"two in one": {[]spec.Validation{{Rules: []spec.Rule{{Rule: `matches(payload.a, "(aaaaaaaa){900}") && matches(payload.b, "a{999}b{999}")`, Message: "a"}}}},
			"message.validation[0].rules[0].rule: line 1, column 49: a regular expression has too many states"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := New(spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: c.all}}}, Options{})
		runtime.ReadMemStats(&after)
		need.That(t, err != nil && strings.Contains(err.Error(), c.want), "%s: %v, want %q", name, err, c.want)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: it took %d MiB to refuse", name, took>>20)
		}
	}
	good := []spec.Validation{{Schema: &spec.PayloadSchema{Inline: `{"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "patternProperties": {"^\\p{L}{1,100}$": {}}}`}}}
	need.Want(t, nil, "ordinary patterns: %v", need.Err(New(spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: good}}}, Options{})))
}

// A schema of the registry that takes too much holds back its own events, and leaves the budget to others.
//
// CONTRACT: C-35
func TestRegistrySchemaIsBounded(t *testing.T) {
	schema := Schema{ID: 1, Type: "JSON", Text: `{"pattern": "(` + strings.Repeat("a", 300) + `){1000}"}`}
	p, err := New(spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{
		SchemaRegistry: &spec.SchemaRegistry{},
		Validation:     []spec.Validation{{Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "a"}}}},
	}}}, Options{Registry: func(context.Context, string, int) (Schema, error) { return schema, nil }})
	need.OK(t, err)
	need.Fails(t, "states with it", "error %v, want that it takes too much", need.Err(p.checks[0].schema.get(t.Context())))
	schema = Schema{ID: 2, Type: "JSON", Text: `{"pattern": "a{100}"}`, References: []Reference{{"b", fmt.Sprintf(`{"title": %q}`, strings.Repeat("a", MaxSchemas))}}}
	need.Fails(t, "bytes with it", "error %v, want that it is too large with its reference", need.Err(p.checks[0].schema.get(t.Context())))
	schema = Schema{ID: 3, Type: "JSON", Text: `{"pattern": "a{100}"}`}
	need.Want(t, nil, "%v", need.Err(p.checks[0].schema.get(t.Context())))
}

// Each step that stops an event names itself. CONTRACT: C-72
func TestFindingNamesTheStepThatStoppedTheEvent(t *testing.T) {
	p, err := New(spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{HTTP: &spec.HTTPSink{}, Routes: []spec.Route{{Topics: []string{"odd"}, To: "event.headers.region"}, {To: `"all"`}}},
			Message: spec.Message{Validation: []spec.Validation{
				{Schema: &spec.PayloadSchema{Inline: `{"properties": {"a": {"type": "number"}, "lines": {"items": {"required": ["price"], "properties": {"price": {"type": "number"}}}}}}`}},
				{Rules: []spec.Rule{{Rule: "payload.b > 0", Message: "m"}}},
				{Types: []string{"Unreachable"}, Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "s"}}},
			},
				Transform:      []spec.Transformation{{Types: []string{"T"}, Payload: `{"c": payload.c}`}},
				SchemaRegistry: &spec.SchemaRegistry{}},
		},
	}, Options{Registry: func(context.Context, string, int) (Schema, error) {
		return Schema{}, dispatcher.Unavailable(errors.New("unreachable"))
	}})
	need.OK(t, err)
	routing := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
		_, err := p.Route()(e)
		return err
	}}
	for name, c := range map[string]struct {
		event dispatcher.Event
		want  []Finding
	}{
		"nothing":      {dispatcher.Event{Payload: []byte(`{"b": 1}`)}, nil},
		"a schema":     {dispatcher.Event{Payload: []byte(`{"a": "x", "b": 1}`)}, []Finding{{"message.validation[0].schema", "/a", "#/properties/a/type (number, not string)"}}},
		"an element":   {dispatcher.Event{Payload: []byte(`{"lines": [{"price": 1}, {"price": "x"}], "b": 1}`)}, []Finding{{"message.validation[0].schema", "/lines/*/price", "#/properties/lines/items/properties/price/type (number, not string)"}}},
		"a member":     {dispatcher.Event{Payload: []byte(`{"lines": [{}], "b": 1}`)}, []Finding{{"message.validation[0].schema", "/lines/*", "#/properties/lines/items/required (price)"}}},
		"a rule":       {dispatcher.Event{Payload: []byte(`{"b": 0}`)}, []Finding{{"message.validation[1].rules[0]", "", "m (payload.b > 0)"}}},
		"a missing":    {dispatcher.Event{Payload: []byte(`{}`)}, []Finding{{"message.validation[1].rules[0]", "", "m (payload.b > 0)"}}},
		"both":         {dispatcher.Event{Payload: []byte(`{"a": "x", "b": 0}`)}, []Finding{{"message.validation[0].schema", "/a", "#/properties/a/type (number, not string)"}, {"message.validation[1].rules[0]", "", "m (payload.b > 0)"}}},
		"uncomputed":   {dispatcher.Event{Payload: []byte(`{"b": "x"}`)}, []Finding{{"message.validation[1].rules[0]", "", "m (payload.b > 0)"}}},
		"a transform":  {dispatcher.Event{EventType: "T", Payload: []byte(`{"b": 1}`)}, []Finding{{Field: "message.transform[0].payload"}}},
		"a registry":   {dispatcher.Event{EventType: "Unreachable", Payload: []byte(`{"b": 1}`)}, []Finding{{Field: "message.validation[2].schema"}}},
		"a route":      {dispatcher.Event{Topic: "odd", Payload: []byte(`{"b": 1}`)}, []Finding{{Field: "sink.routes[0].to"}}},
		"no such JSON": {dispatcher.Event{Payload: []byte(`{"b": `)}, []Finding{{Field: "payload"}}},
	} {
		err := p.Wrap(routing).Deliver(t.Context(), []*dispatcher.Event{&c.event})[0]
		got := Findings(err)
		need.That(t, reflect.DeepEqual(got, c.want), "%s: got %+v of %v, want %+v", name, got, err, c.want)
		need.That(t, name != "a registry" || dispatcher.IsUnavailable(err), "%s: %v is not Unavailable any more", name, err)
	}
}
