package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
)

// schemaFile makes a pipeline with a schema in a file. It looks at the file at each call.
func schemaFile(t *testing.T, text string) (p *Pipeline, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "schema.json")
	write(t, path, text)
	p, err := New(config.Config{Message: config.Message{Validation: []config.Validation{{Schema: &config.PayloadSchema{File: path}}}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.checks[0].schema.(*filed).watched.Every = 0
	return p, path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A schema's file that changes is used from the next event on, and one that is wrong leaves the schema before it.
//
// CONTRACT: C-72, C-101
func TestSchemaFileIsReadAgain(t *testing.T) {
	p, path := schemaFile(t, `{"required": ["a"]}`)
	holds := func(name string) {
		t.Helper()
		s, err := p.checks[0].schema.get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(violations(t, s, `{"`+name+`": 1}`)) != 0 || len(violations(t, s, `{}`)) == 0 {
			t.Errorf("the schema that requires %s is not used", name)
		}
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
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
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
	var schemas, rules, large []config.Validation
	for range 11 { // 3.3 KB that take 240 MiB when they are compiled
		schemas = append(schemas, config.Validation{Schema: &config.PayloadSchema{Inline: `{"pattern": "` + expands + `"}`}})
		rules = append(rules, config.Validation{Rules: []config.Rule{{Rule: `matches(payload.a, "` + expands + `")`, Message: "a"}}})
	}
	var small []config.Validation
	for range 6 { // each is within what an expression may have
		small = append(small, config.Validation{Rules: []config.Rule{{Rule: `matches(payload.a, "(aaaaaaaa){900}")`, Message: "a"}}})
	}
	for range 5 {
		large = append(large, config.Validation{Schema: &config.PayloadSchema{Inline: `{"title": "` + strings.Repeat("a", 60<<10) + `"}`}})
	}
	for name, c := range map[string]struct {
		all  []config.Validation
		want string
	}{
		"schemas":      {schemas, "message.validation[0].schema.inline: the regular expressions of this dispatcher have 302001 states with it, and may have 50000"},
		"rules":        {rules, "message.validation[0].rules[0].rule: line 1, column 8: a regular expression has too many states: 10000 at most"},
		"many rules":   {small, "message.validation[5].rules[0].rule: the regular expressions of this dispatcher have"},
		"many schemas": {large, "message.validation[4].schema.inline: the schemas of this dispatcher have"},
		"two in one": {[]config.Validation{{Rules: []config.Rule{{Rule: `matches(payload.a, "(aaaaaaaa){900}") && matches(payload.b, "a{999}b{999}")`, Message: "a"}}}},
			"message.validation[0].rules[0].rule: line 1, column 49: a regular expression has too many states"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := New(config.Config{Message: config.Message{Validation: c.all}}, Options{})
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: it took %d MiB to refuse", name, took>>20)
		}
	}
	good := []config.Validation{{Schema: &config.PayloadSchema{Inline: `{"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "patternProperties": {"^\\p{L}{1,100}$": {}}}`}}}
	if _, err := New(config.Config{Message: config.Message{Validation: good}}, Options{}); err != nil {
		t.Errorf("ordinary patterns: %v", err)
	}
}

// A schema of the registry that takes too much holds back its own events, and leaves the budget to others.
//
// CONTRACT: C-35
func TestRegistrySchemaIsBounded(t *testing.T) {
	schema := Schema{ID: 1, Type: "JSON", Text: `{"pattern": "(` + strings.Repeat("a", 300) + `){1000}"}`}
	p, err := New(config.Config{Message: config.Message{
		SchemaRegistry: &config.SchemaRegistry{},
		Validation:     []config.Validation{{Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "a"}}}},
	}}, Options{Registry: func(context.Context, string, int) (Schema, error) { return schema, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.checks[0].schema.get(t.Context()); err == nil || !strings.Contains(err.Error(), "states with it") {
		t.Errorf("error %v, want that it takes too much", err)
	}
	schema = Schema{ID: 2, Type: "JSON", Text: `{"pattern": "a{100}"}`, References: []Reference{{"b", fmt.Sprintf(`{"title": %q}`, strings.Repeat("a", MaxSchemas))}}}
	if _, err := p.checks[0].schema.get(t.Context()); err == nil || !strings.Contains(err.Error(), "bytes with it") {
		t.Errorf("error %v, want that it is too large with its reference", err)
	}
	schema = Schema{ID: 3, Type: "JSON", Text: `{"pattern": "a{100}"}`}
	if _, err := p.checks[0].schema.get(t.Context()); err != nil {
		t.Error(err)
	}
}
