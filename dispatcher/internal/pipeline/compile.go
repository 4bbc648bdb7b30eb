package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
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
