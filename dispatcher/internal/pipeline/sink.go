package pipeline

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/watched"
)

// Wrap returns a sink that validates and transforms events, and computes their headers, before it hands them
// to next. It is next itself when there is nothing of that to do.
func (p *Pipeline) Wrap(next dispatcher.Sink) dispatcher.Sink {
	if len(p.checks)+len(p.transforms) == 0 && p.message == nil {
		return next
	}
	return &sink{next, p}
}

// sink probes, closes and takes batches as the sink that it embeds.
type sink struct {
	dispatcher.Sink
	pipeline *Pipeline
}

// Deliver hands those events on that pass, and returns an error for each of the others.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if !s.concerns(batch) {
		return s.Sink.Deliver(ctx, batch)
	}
	since := time.Now()
	ready, at := make([]*dispatcher.Event, 0, len(batch)), make([]int, 0, len(batch))
	errs := dispatcher.InOrder(batch, func(i int, e *dispatcher.Event) error {
		passed, err := s.pass(ctx, since, e)
		if err == nil {
			ready, at = append(ready, passed), append(at, i)
		}
		return err
	})
	if len(ready) == 0 {
		return errs
	}
	results := s.Sink.Deliver(ctx, ready)
	for i := range ready {
		if len(results) != len(ready) {
			errs[at[i]] = fmt.Errorf("the sink returned %d results for %d events; it must return one for each", len(results), len(ready))
		} else {
			errs[at[i]] = results[i]
		}
	}
	return errs
}

// KeepsOrder implements [dispatcher.Ordered]: an event that is behind one which does not pass is not handed on.
func (s *sink) KeepsOrder() bool { return dispatcher.KeepsOrder(s.Sink) }

func (s *sink) concerns(batch []*dispatcher.Event) bool {
	if s.pipeline.message != nil {
		return true
	}
	for _, e := range batch {
		if s.pipeline.steps(e) != nil {
			return true
		}
	}
	return false
}

// pass returns the event that is delivered: itself, or a copy when its payload or its headers were made.
// since is when the event was there.
func (s *sink) pass(ctx context.Context, since time.Time, e *dispatcher.Event) (*dispatcher.Event, error) {
	steps, message := s.pipeline.steps(e), s.pipeline.message
	if steps == nil && message == nil {
		return e, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, interrupted(err)
	}
	checks, err := steps.checksOf(e)
	if err != nil {
		return nil, err
	}
	schemas, err := schemasOf(ctx, checks)
	if err != nil {
		return nil, dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassSchema, Code: "Unavailable"}, err)
	}
	changed := *e
	var payload any
	if steps != nil || message.readsPayload {
		if len(e.Payload) > small {
			select {
			case s.pipeline.large <- struct{}{}:
				defer func() { <-s.pipeline.large }()
			case <-ctx.Done():
				return nil, interrupted(ctx.Err())
			}
		}
		if payload, err = steps.payload(ctx, since, &changed, checks, schemas); err != nil {
			return nil, err
		}
	}
	if message != nil {
		if changed.Message, err = message.of(ctx, e, payload); err != nil {
			return nil, err
		}
	}
	return &changed, nil
}

// payload decodes the event's payload, takes it through the steps, and puts what transformations make of it
// into the event.
func (s *steps) payload(ctx context.Context, since time.Time, e *dispatcher.Event, checks []*check, schemas []*jsonSchema) (any, error) {
	payload, err := expression.Decode(e.Payload)
	if err != nil {
		return nil, failed(dispatcher.Cause{Class: dispatcher.ClassDecode}, dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, err), Finding{Field: "payload"})
	}
	if s == nil {
		return payload, nil
	}
	if err := validate(ctx, since, e, payload, checks, schemas); err != nil {
		return nil, err
	}
	if len(s.transforms) == 0 {
		return payload, nil
	}
	for _, t := range s.transforms {
		if payload, err = t.apply(ctx, e, payload); err != nil {
			return nil, err
		}
	}
	e.Payload, err = expression.Encode(payload)
	return payload, err
}

// small is the size of a payload, in bytes, up to which any number of events pass at once. Of larger ones,
// which can take 50 times as much memory when they are decoded, as many pass at once as there are CPUs
// (CONTRACT C-35).
const small = 64 << 10

func interrupted(err error) error {
	return fmt.Errorf("the delivery was interrupted before anything was sent: %w", err)
}

// schemasOf returns the schema of each check, nil for none.
func schemasOf(ctx context.Context, checks []*check) ([]*jsonSchema, error) {
	all := make([]*jsonSchema, len(checks))
	for i, c := range checks {
		if c.schema == nil {
			continue
		}
		var err error
		if all[i], err = c.schema.get(ctx); err != nil {
			return nil, &foundError{err, []Finding{{Field: c.field + ".schema"}}}
		}
	}
	return all, nil
}

// validate checks the payload against all that is for it. What the payload breaks is final, but for a schema of which
// the registry may have a newer one at since; where it breaks nothing, a schema that takes too much work or a rule that
// cannot be computed holds it.
func validate(ctx context.Context, since time.Time, e *dispatcher.Event, payload any, checks []*check, schemas []*jsonSchema) error {
	var all []string
	var found []Finding
	var held error
	var first dispatcher.Cause // of what the payload breaks
	var unsure error           // why some of all are not final
	notFinal := 0              // how many
	broken := func(cause dispatcher.Cause, f Finding, text string) {
		if len(all) == 0 {
			first = cause
		}
		all, found = append(all, text), append(found, f)
	}
	for i, c := range checks {
		if schemas[i] != nil {
			violations, err := schemas[i].violations(ctx, payload, len(e.Payload))
			if r, ok := c.schema.(*registered); ok && len(violations) > 0 {
				newer, why, unavailable := r.newer(ctx, since, schemas[i])
				if unavailable != nil {
					return failed(dispatcher.Cause{Class: dispatcher.ClassSchema, Code: "Unavailable"}, unavailable, Finding{Field: c.field + ".schema"})
				}
				if newer != schemas[i] {
					violations, err = newer.violations(ctx, payload, len(e.Payload))
				}
				if why != nil {
					unsure = why
					notFinal += len(violations)
				}
			}
			switch {
			case err != nil && ctx.Err() != nil:
				return interrupted(ctx.Err())
			case err != nil && held == nil:
				held = failed(dispatcher.Cause{Class: dispatcher.ClassSchema, Code: "work"}, dispatcher.DestinationFault(fmt.Errorf(
					"event %s: %s.schema cannot be applied: %w; give the schema fewer alternatives where it refers to itself, or nest less in the payload: the event is kept and tried again",
					e.ID, c.field, err)), Finding{Field: c.field + ".schema", What: err.Error()})
			}
			for _, violation := range violations {
				violation.finding.Field = c.field + ".schema"
				broken(violation.cause, violation.finding, c.field+".schema, "+violation.text)
			}
		}
		for _, r := range c.rules {
			cause := dispatcher.Cause{Class: dispatcher.ClassRule, Code: r.field}
			holds, err := r.holds.Bool(ctx, e, payload)
			switch {
			case err != nil && ctx.Err() != nil:
				return interrupted(ctx.Err())
			case expression.IsMissing(err):
				broken(cause, r.finding(), fmt.Sprintf("%s: %s (%s cannot be computed: %v)", r.field, r.message, oneLine(r.holds.Text()), err))
			case err != nil && held == nil:
				held = uncomputed(cause, r.finding(), e, fmt.Sprintf("%s (%s)", r.field, r.message), r.holds, err, refuseThem)
			case err == nil && !holds:
				broken(cause, r.finding(), fmt.Sprintf("%s: %s (%s)", r.field, r.message, oneLine(r.holds.Text())))
			}
		}
	}
	if len(all) == 0 {
		return held
	}
	if notFinal == len(all) { // the registry's error is not wrapped: the failure is the event's
		return failed(first, fmt.Errorf("%s; correct the producer or the validation; a newer schema could not be read, so it is tried again: %s",
			invalidPayload(all), unsure.Error()), found...)
	}
	err := fmt.Errorf("%s; correct the producer or the validation, and replay the event", invalidPayload(all))
	return failed(first, dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, err), found...)
}

func (r rule) finding() Finding {
	return Finding{Field: r.field, What: fmt.Sprintf("%s (%s)", r.message, oneLine(r.holds.Text()))}
}

// uncomputed is the failure of an event for which an expression cannot be computed. It is not the event's
// fault alone: someone may correct the expression. So no event becomes dead by it while none of its topic is delivered.
func uncomputed(cause dispatcher.Cause, f Finding, e *dispatcher.Event, what string, x *expression.Expression, err error, remedy string) error {
	return failed(cause, dispatcher.DestinationFault(fmt.Errorf("event %s: %s cannot be computed: %w; correct the expression (%s), %s: the event is kept and tried again",
		e.ID, what, err, oneLine(x.Text()), remedy)), f)
}

// failed is an error with its cause, which dead letters keep, and the parts of the configuration that it is about.
func failed(cause dispatcher.Cause, err error, found ...Finding) error {
	return dispatcher.WithCause(cause, &foundError{err, found})
}

// refuseThem is what else may be done about payloads that an expression is not made for.
const refuseThem = "or have a schema refuse such payloads"

// maxViolations is how many violations of an event an error names.
const maxViolations = 5

func invalidPayload(violations []string) string {
	text := strings.Join(violations[:min(len(violations), maxViolations)], "; ")
	if len(violations) > maxViolations {
		text += "; and more"
	}
	return text
}

func (t *transform) apply(ctx context.Context, e *dispatcher.Event, payload any) (any, error) {
	made, err := t.payload.JSON(ctx, e, payload)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, interrupted(ctx.Err())
	case err != nil:
		return nil, uncomputed(dispatcher.Cause{Class: dispatcher.ClassMask, Code: t.field}, Finding{Field: t.at}, e, t.at, t.payload, err, refuseThem)
	}
	return made, nil
}

// filed is a schema in a file. When the file changes, a schema that compiles is used within a
// second. One that does not leaves the schema before it in use.
type filed struct {
	field, path string
	watched     *watched.Value[*jsonSchema]

	mu      sync.Mutex
	last    *jsonSchema
	problem *FileProblem
}

// FileProblem is a file that cannot be used as it is now. The content before stays in use.
type FileProblem struct {
	// Field is the field of the configuration that names the file.
	Field string
	// Err says why, with line and column where there are some, and the remedy.
	Err error
	// Since is when that was seen first, on this process's clock.
	Since time.Time
}

func newFiled(field, path string, read func(string) ([]byte, error), b *budget) *filed {
	return &filed{field: field, path: path, watched: watched.New(func() (*jsonSchema, error) {
		text, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; name a file that can be read", field, err)
		}
		compiled, err := b.compile(field, text, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", field, path, err)
		}
		return compiled, nil
	}, path)}
}

func (f *filed) String() string { return "the schema of " + f.path }

func (f *filed) get(context.Context) (*jsonSchema, error) {
	now, err := f.watched.Get()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.last, f.problem = now, nil
	case f.last == nil:
		return nil, err
	case f.problem == nil || f.problem.Err.Error() != err.Error():
		f.problem = &FileProblem{f.field, err, time.Now()}
	}
	return f.last, nil
}

// FileProblems looks at the files of schemas, and returns those that cannot be used as they are now.
func (p *Pipeline) FileProblems() (all []FileProblem) {
	for _, c := range p.checks {
		f, ok := c.schema.(*filed)
		if !ok {
			continue
		}
		_, _ = f.get(context.Background()) // its error is for a schema that was never there
		f.mu.Lock()
		if f.problem != nil {
			all = append(all, *f.problem)
		}
		f.mu.Unlock()
	}
	return all
}
