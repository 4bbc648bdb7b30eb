package pipeline

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

func decode(t *testing.T, payload string) any {
	t.Helper()
	v, err := expression.Decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func violations(t *testing.T, s *jsonSchema, payload string) []violation {
	t.Helper()
	all, err := s.violations(t.Context(), decode(t, payload), len(payload))
	if err != nil {
		t.Fatal(err)
	}
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
		if !slices.Equal(got, c.want) {
			t.Errorf("%s for %s:\ngot  %q\nwant %q", c.schema, c.payload, got, c.want)
		}
	}
}

func TestSchemaErrors(t *testing.T) {
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
		if _, err := compileSchema([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v\nwant %s", text, err, want)
		}
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
		if !strings.Contains(got, "at /customer/address: ") || !strings.Contains(got, "address.json#/required (city)") || !strings.Contains(got, "at /total: ") {
			t.Errorf("%s: %s", id, got)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		s, err := compileSchema(text, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		payload, err := json.Marshal(randomValue(r, 4))
		if err != nil {
			t.Fatal(err)
		}
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
	if invalid < 1000 {
		t.Errorf("only %d payloads were invalid", invalid)
	}
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
