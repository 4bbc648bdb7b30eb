package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// What the payload says is final: a rule that is false, a key or an element that is not there. What stops a
// rule from being computed is the configuration's as well: no event becomes dead by it at once.
//
// CONTRACT: C-33, C-72, C-73
func TestRuleCannotBeComputed(t *testing.T) {
	items := `{"items": [{"q":1,"p":12.5}` + strings.Repeat(`,{"q":1,"p":12.5}`, 59_999) + `]}`
	grown := `{"a": "` + strings.Repeat("x", 40_000) + `", "b": "` + strings.Repeat("y", 40_000) + `"}`
	for _, c := range []struct{ rule, payload, dead, held string }{
		{`payload.quantity + 1 > 0`, `{"quantity": 3}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 3.5}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 9007199254740993}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 18446744073709551615}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": -3}`, "m (payload.quantity + 1 > 0)", ""},
		{`payload.items.all(i, i.q > 0 && i.p > 0)`, items, "", ""},
		{`payload.quantity > 0`, `{}`, "line 1, column 8: it reads a key", ""},
		{`payload.items[0] > 0`, `{"items": []}`, "line 1, column 14: it reads an element", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": "` + secret + `"}`, "", "line 1, column 18: a value is of a type that is not expected there"},
		{`payload.quantity`, `{"quantity": "` + secret + `"}`, "", "line 1, column 1: it makes a string, not a bool"},
		{`1 / payload.quantity > 0`, `{"quantity": 0}`, "", "line 1, column 3: it divides by zero"},
		{`timestamp(payload.at) > timestamp(0)`, `{"at": "` + secret + `"}`, "", "line 1, column 10: a value cannot be converted"},
		{`payload.items.all(i, payload.items.all(j, i.q == j.q))`, items, "", "it costs more than a payload of 1020012 bytes may"},
		{"payload.a.size() > 0 &&\n  payload.a.replace('x', payload.b).size() > 0", grown, "", "line 2, column 20: it makes more than a payload of 80018 bytes may (12 MiB)"},
	} {
		p := compile(t, config.Config{Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{{Rule: c.rule, Message: "m"}}}}}}, pipeline.Options{})
		inner := &sinktest.Recording{}
		e := event("", c.payload)
		err := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{e})[0]
		reason, dead := dispatcher.PermanentReason(err)
		switch {
		case c.dead == "" && c.held == "":
			if err != nil || len(inner.Events()) != 1 {
				t.Errorf("%s of %.40s: %v", c.rule, c.payload, err)
			}
		case c.dead != "":
			if reason != dispatcher.ReasonSchemaValidationFailed || !strings.Contains(err.Error(), c.dead) {
				t.Errorf("%s of %.40s: %v", c.rule, c.payload, err)
			}
		case dead || !dispatcher.IsDestinationFault(err):
			t.Errorf("%s of %.40s does not hold the event: %v", c.rule, c.payload, err)
		default:
			for _, part := range []string{"event " + e.ID.String() + ": message.validation[0].rules[0] (m) cannot be computed: ", c.held, "; correct the expression ("} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s of %.40s: %v\nwithout %s", c.rule, c.payload, err, part)
				}
			}
		}
		if c.dead+c.held != "" && (len(inner.Events()) != 0 || strings.Contains(fmt.Sprint(err), "4111")) {
			t.Errorf("%s of %.40s: it arrived, or is quoted: %v", c.rule, c.payload, err)
		}
	}
}

// What the payload breaks is final also where another rule cannot be computed.
func TestBrokenAndNotComputed(t *testing.T) {
	p := compile(t, config.Config{Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{
		{Rule: `payload.a > 1`, Message: "first"}, {Rule: `payload.b > 1`, Message: "second"}}}}}}, pipeline.Options{})
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{event("", `{"a": "x", "b": 1}`)})[0]
	if reason, _ := dispatcher.PermanentReason(err); reason != dispatcher.ReasonSchemaValidationFailed || !strings.Contains(err.Error(), "second (payload.b > 1)") {
		t.Errorf("error %v", err)
	}
}

// A schema that refers to itself in two places takes 2 to the power of the payload's depth. It ends, and holds the event
// as a rule does.
//
// CONTRACT: C-33, C-35
func TestSchemaTakesTooMuchWork(t *testing.T) {
	const union = `"$defs": {"part": {"oneOf": [{"type": "number"}, {"$ref": "#/$defs/and"}, {"$ref": "#/$defs/or"}]},
		"and": {"type": "object", "properties": {"op": {"const": "and"}, "args": {"type": "array", "items": {"$ref": "#/$defs/part"}}}},
		"or": {"type": "object", "properties": {"op": {"const": "or"}, "args": {"type": "array", "items": {"$ref": "#/$defs/part"}}}}}`
	nested := func(levels int, before, innermost, after string) string {
		return strings.Repeat(before, levels) + innermost + strings.Repeat(after, levels)
	}
	and := func(levels int, innermost string) string {
		return nested(levels, `{"args": [`, innermost, `], "op": "and"}`)
	}
	for _, c := range []struct {
		schema, payload string
		held            bool
	}{
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(8, "1"), false},
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(40, "1"), true},
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(40, `"`+secret+`"`), true},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "not": {"$ref": "#/$defs/part"}, ` + union + `}`, and(40, "1"), true},
		{`{"not": {"$ref": "#/$defs/list"}, "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}, "contains": {"$ref": "#/$defs/list"}}}}`, nested(40, "[", "1", "]"), true},
		{`{"type": "array", "items": {"$ref": "#"}}`, nested(5000, "[", "1", "]"), true}, // the names of all levels, for each level
		{`{"allOf": [{}` + strings.Repeat(`, {"pattern": "a$"}`, 200) + `]}`, `"` + strings.Repeat("a", 64<<10) + `"`, true},
		{`{"items": {"oneOf": [{"type": "string"}, {"minimum": 0}]}}`, `[1` + strings.Repeat(",1", 500_000) + `]`, false},
	} {
		s := compile(t, config.Config{Message: config.Message{Validation: []config.Validation{{Schema: schema(c.schema)}}}}, pipeline.Options{}).Wrap(&sinktest.Recording{})
		e := event("", c.payload)
		err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]
		_, dead := dispatcher.PermanentReason(err)
		if dead || dispatcher.IsDestinationFault(err) != c.held || !c.held && err != nil ||
			c.held && !strings.HasPrefix(err.Error(), "event "+e.ID.String()+": message.validation[0].schema cannot be applied: it takes more work than") {
			t.Errorf("%.80s of %.40s: %v", c.schema, c.payload, err)
		}
		if !c.held {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.Deliver(&lateContext{ctx, cancel, 20}, []*dispatcher.Event{e})[0]; !errors.Is(err, context.Canceled) || dispatcher.IsDestinationFault(err) {
			t.Errorf("%.80s of %.40s after the end of its delivery: %v", c.schema, c.payload, err)
		}
	}
}

// A rule that takes long ends with the delivery, and says nothing of the rule.
func TestDeliveryEnds(t *testing.T) {
	p := compile(t, config.Config{
		Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{{Rule: `payload.all(x, payload.exists(y, y > x))`, Message: "m"}}}}},
	}, pipeline.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	payload := `[1` + strings.Repeat(",1", 400_000) + `]`
	errs := p.Wrap(&sinktest.Recording{}).Deliver(&lateContext{ctx, cancel, 2}, []*dispatcher.Event{event("", payload)})
	if !errors.Is(errs[0], context.Canceled) || dispatcher.IsDestinationFault(errs[0]) || !strings.Contains(errs[0].Error(), "before anything was sent") {
		t.Errorf("error %v", errs[0])
	}
}

// Of large payloads, as many are decoded at once as there are CPUs, and small ones wait for none of them.
//
// CONTRACT: C-35
func TestLargePayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, config.Config{Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{{Rule: `payload.all(x, x > 0)`, Message: "m"}}}}}}, pipeline.Options{})
		s := p.Wrap(&sinktest.Recording{})
		cpus := runtime.GOMAXPROCS(0)
		var inside atomic.Int32
		release := make(chan struct{})
		deliver := func(elements int) {
			ctx := &gate{Context: t.Context(), inside: &inside, release: release}
			go s.Deliver(ctx, []*dispatcher.Event{event("", `[1`+strings.Repeat(",1", elements)+`]`)})
		}
		for range cpus + 3 {
			deliver(40_000)
		}
		if synctest.Wait(); int(inside.Load()) != cpus {
			t.Errorf("%d large payloads at once with %d CPUs", inside.Load(), cpus)
		}
		deliver(10_000)
		if synctest.Wait(); int(inside.Load()) != cpus+1 {
			t.Error("a small payload waits for large ones")
		}
		close(release)
		if synctest.Wait(); int(inside.Load()) != cpus+4 {
			t.Errorf("%d payloads were decoded in the end", inside.Load())
		}
	})
}

// gate holds an evaluation when it looks at its context for the first time.
type gate struct {
	context.Context
	inside  *atomic.Int32
	release chan struct{}
	calls   int
}

// Err is called once before the payload is decoded.
func (g *gate) Err() error {
	if g.calls++; g.calls == 2 {
		g.inside.Add(1)
		<-g.release
	}
	return g.Context.Err()
}

// lateContext ends when its error has been read a number of times.
type lateContext struct {
	context.Context
	cancel context.CancelFunc
	calls  int
}

// Err ends the context, at last.
func (c *lateContext) Err() error {
	if c.calls--; c.calls == 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// A transformation that cannot be computed kills nothing: someone may correct it.
func TestTransformFails(t *testing.T) {
	p := compile(t, config.Config{Message: config.Message{Transform: []config.Transformation{{Payload: `with(payload, {"x": payload.missing})`}}}}, pipeline.Options{})
	inner := &sinktest.Recording{}
	errs := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{event("", `{"a": "`+secret+`"}`), event("", `["`+secret+`"]`)})
	for _, err := range errs {
		_, permanent := dispatcher.PermanentReason(err)
		if err == nil || permanent || !dispatcher.IsDestinationFault(err) || !strings.Contains(err.Error(), ": message.transform[0].payload cannot be computed: line 1, column ") {
			t.Errorf("error %v", err)
		}
		if strings.Contains(fmt.Sprint(err), "4111") {
			t.Errorf("the error quotes the payload: %v", err)
		}
	}
	if n := len(inner.Events()); n != 0 {
		t.Errorf("%d events arrived as they were", n)
	}
}
