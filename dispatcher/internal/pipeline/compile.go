package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pattern"
)

// compiler collects what is wrong.
type compiler struct {
	Options
	budget   *budget
	problems []error
}

func (c *compiler) expression(field, text string, compile func(string) (*expression.Expression, error)) *expression.Expression {
	x, err := compile(text)
	if err == nil {
		_, err = c.budget.take(field, usage{states: x.PatternStates()})
	}
	if err != nil {
		c.problems = append(c.problems, fmt.Errorf("%s: %w", field, err))
	}
	return x
}

func (c *compiler) check(field string, v spec.Validation) *check {
	made := &check{field: field, types: v.Types, versions: v.Versions}
	if v.Schema != nil {
		made.schema = c.schema(field+".schema", v.Schema)
	}
	for i, r := range v.Rules {
		at := fmt.Sprintf("%s.rules[%d]", field, i)
		made.rules = append(made.rules, rule{at, r.Message, c.expression(at+".rule", r.Rule, expression.Bool)})
	}
	return made
}

// schema is a place that a JSON Schema comes from.
type schema interface {
	// get returns the schema, compiled.
	get(ctx context.Context) (*jsonSchema, error)
	// String says where it comes from.
	String() string
}

func (c *compiler) schema(field string, s *spec.PayloadSchema) schema {
	if s.Registry != nil {
		return &registered{field: field + ".registry", subject: s.Registry.Subject, version: int(s.Registry.Version), lookup: c.Registry, renew: c.Newer, budget: c.budget}
	}
	if s.File != "" {
		f := newFiled(field+".file", s.File, c.ReadFile, c.budget)
		if _, err := f.get(context.Background()); err != nil {
			c.problems = append(c.problems, err)
			return nil
		}
		return f
	}
	field += ".inline"
	compiled, err := c.budget.compile(field, []byte(s.Inline), nil)
	if err != nil {
		c.problems = append(c.problems, fmt.Errorf("%s: %w", field, err))
		return nil
	}
	return fixed{compiled}
}

// fixed is an inline schema.
type fixed struct{ schema *jsonSchema }

func (f fixed) get(context.Context) (*jsonSchema, error) { return f.schema, nil }
func (f fixed) String() string                           { return "an inline schema" }

// registered is a schema of the registry. It is looked up for each event, and compiled when it
// is a new one.
type registered struct {
	field, subject string
	version        int
	lookup         func(ctx context.Context, subject string, version int) (Schema, error)
	renew          func(ctx context.Context, subject string, since time.Time) (schema Schema, unsure, err error)
	budget         *budget

	mu       sync.Mutex
	id       int
	compiled *jsonSchema
	err      error
}

func (r *registered) String() string {
	if r.version == 0 {
		return "the latest schema of " + r.subject
	}
	return fmt.Sprintf("version %d of %s", r.version, r.subject)
}

// get returns the schema, or the registry's error. A schema that cannot be used is a fault of one schema; it says nothing of other
// events, so it is never dispatcher.Unavailable.
func (r *registered) get(ctx context.Context) (*jsonSchema, error) {
	if r.lookup == nil {
		return nil, errors.New("there is no schema registry")
	}
	s, err := r.lookup(ctx, r.subject, r.version)
	return r.use(s, err)
}

// newer returns the schema for an event that breaks the known one, and why that is not final: nil when the registry had no
// newer one at since, when the event was there.
func (r *registered) newer(ctx context.Context, since time.Time, known *jsonSchema) (compiled *jsonSchema, unsure, err error) {
	if r.version != 0 || r.renew == nil {
		return known, nil, nil
	}
	s, unsure, err := r.renew(ctx, r.subject, since)
	compiled, err = r.use(s, err)
	return compiled, unsure, err
}

// use compiles a schema of the registry, unless it is the one that is compiled.
func (r *registered) use(s Schema, err error) (*jsonSchema, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.field, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id != s.ID || (r.compiled == nil && r.err == nil) {
		r.id = s.ID
		r.compiled, r.err = r.compile(s)
	}
	return r.compiled, r.err
}

func (r *registered) compile(s Schema) (*jsonSchema, error) {
	if s.Type != "JSON" {
		return nil, fmt.Errorf("%s: %s (id %d) is of type %s; name a subject that has a JSON Schema", r.field, r, s.ID, s.Type)
	}
	compiled, err := r.budget.compile(r.field, []byte(s.Text), s.References)
	if err != nil {
		return nil, fmt.Errorf("%s: %s (id %d): %w", r.field, r, s.ID, err)
	}
	return compiled, nil
}

// What the schemas and expressions of one dispatcher may take together (CONTRACT C-35).
const (
	// MaxSchemas is the most bytes of all schemas, with their references.
	MaxSchemas = 256 << 10
	// MaxPatterns is the most states of all regular expressions, in schemas and in expressions. Each character is
	// one, and a{1000} is a thousand.
	MaxPatterns = 50_000
)

// budget counts what each field uses of that.
type budget struct {
	mu     sync.Mutex
	usages map[string]usage
}

// usage is the bytes of a schema, and the states of regular expressions.
type usage struct{ text, states int }

// take sets a field's usage, and returns the one before. It fails when a limit is exceeded; then the field
// keeps the usage that it has.
func (b *budget) take(field string, u usage) (before usage, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.usages[field]
	sum := u
	for other, has := range b.usages {
		if other != field {
			sum.text, sum.states = sum.text+has.text, sum.states+has.states
		}
	}
	switch {
	case sum.text > MaxSchemas:
		return before, fmt.Errorf("the schemas of this dispatcher have %d bytes with it, and may have %d; shorten them, or divide the topics among dispatchers", sum.text, MaxSchemas)
	case sum.states > MaxPatterns:
		return before, fmt.Errorf("the regular expressions of this dispatcher have %d states with it, and may have %d, where each repetition of a character counts; use smaller repetitions, or maxLength", sum.states, MaxPatterns)
	}
	if b.usages == nil {
		b.usages = map[string]usage{}
	}
	b.usages[field] = u
	return before, nil
}

// compile compiles the schema of a field within the budget.
func (b *budget) compile(field string, text []byte, references []Reference) (*jsonSchema, error) {
	wants := usage{text: len(text)}
	for _, r := range references {
		wants.text += len(r.Text)
	}
	before, err := b.take(field, wants) // before it is read: reading takes memory too
	if err != nil {
		return nil, err
	}
	back := func(err error) (*jsonSchema, error) {
		_, _ = b.take(field, before) // which fitted
		return nil, err
	}
	for _, document := range append([]Reference{{Text: string(text)}}, references...) {
		states, err := patternStates(document.Text)
		if err != nil {
			return back(err)
		}
		wants.states += states
	}
	if _, err := b.take(field, wants); err != nil {
		return back(err)
	}
	compiled, err := compileSchema(text, references)
	if err != nil {
		return back(err)
	}
	return compiled, nil
}

// patternStates adds up the regular expressions of a schema's document. A text that is not JSON has none:
// compiling it fails.
func patternStates(text string) (states int, err error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	add := func(place []string, re string) {
		size, wrong := pattern.Size(re)
		if states += size; wrong != nil && err == nil {
			err = fmt.Errorf("%s: %w; correct the regular expression", at([]byte(text), place), wrong)
		}
	}
	var walk func(place []string, value any)
	walk = func(place []string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for keyword, value := range v {
				here := append(place[:len(place):len(place)], keyword)
				if re, ok := value.(string); ok && keyword == "pattern" {
					add(here, re)
				}
				if patterns, ok := value.(map[string]any); ok && keyword == "patternProperties" {
					for re := range patterns {
						add(append(here[:len(here):len(here)], re), re)
					}
				}
				walk(here, value)
			}
		case []any:
			for i, value := range v {
				walk(append(place[:len(place):len(place)], fmt.Sprint(i)), value)
			}
		}
	}
	walk(nil, document)
	return states, err
}
