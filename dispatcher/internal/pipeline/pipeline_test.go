package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const secret = "card-4111-1111"

func event(kind, payload string) *dispatcher.Event {
	return &dispatcher.Event{ID: uuid.Must(uuid.NewV7()), Namespace: "shop", Topic: "orders", EventType: kind,
		Headers: map[string]string{"region": "eu"}, Payload: []byte(payload), Attempt: 1}
}

func compile(t testing.TB, cfg spec.Config, o pipeline.Options) *pipeline.Pipeline {
	t.Helper()
	cfg.Sink.Kafka = &spec.KafkaSink{}
	p, err := pipeline.New(cfg, o)
	need.OK(t, err)
	return p
}

func schema(text string) *spec.PayloadSchema { return &spec.PayloadSchema{Inline: text} }

// CONTRACT: C-29
// REQUIREMENT: OVERVIEW-2, STORAGE-9
func TestRouteComputesTheDestination(t *testing.T) {
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Routes: []spec.Route{
		{Topics: []string{"orders", "returns"}, To: `"shop." + event.type + "." + event.headers.region`},
		{Topics: []string{"refunds"}, To: `event.aggregateId`},
		{Topics: []string{"invoices"}, To: `event.headers["zone"]`},
	}}}}, pipeline.Options{})
	route := p.Route()
	e := event("Placed", `{}`)
	if to, err := route(e); err != nil || to != "shop.Placed.eu" {
		t.Errorf("%q, %v", to, err)
	}
	e.Topic = "refunds"
	if to, err := route(e); to != "" || err == nil || err.Error() != "event "+e.ID.String()+": sink.routes[1].to cannot be computed: it makes an empty string; correct the expression (event.aggregateId), or what is enqueued: the event is kept and tried again" || !dispatcher.IsDestinationFault(err) {
		t.Errorf("%q, %v", to, err)
	}
	e.Topic = "invoices"
	if to, err := route(e); to != "" || err == nil || err.Error() != "event "+e.ID.String()+`: sink.routes[2].to cannot be computed: line 1, column 14: it reads a key that is not there; test it with has(); correct the expression (event.headers["zone"]), or what is enqueued: the event is kept and tried again` || !dispatcher.IsDestinationFault(err) {
		t.Errorf("%q, %v", to, err)
	}
	e.Topic = "unheard-of"
	to, err := route(e)
	need.That(t, to == "" && errors.Is(err, dispatcher.ErrNoHandler) && strings.Contains(err.Error(), `topic "unheard-of": `) && strings.Contains(err.Error(), "add one to sink.routes"),
		"%q, %v", to, err)
	_, permanent := dispatcher.PermanentReason(err)
	need.That(t, !permanent && !dispatcher.IsUnavailable(err), "%v is not retried like any other failure", err)

	rest := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Routes: []spec.Route{{Topics: []string{"refunds"}, To: `'a'`}, {To: `event.topic`}}}}}, pipeline.Options{})
	if to, err := rest.Route()(e); err != nil || to != "unheard-of" {
		t.Errorf("the rest goes to %q, %v", to, err)
	}
	need.That(t, compile(t, spec.Config{}, pipeline.Options{}).Route() == nil, "there is a route without routes")
}

func TestNewReportsAllProblemsAtOnce(t *testing.T) {
	cfg := spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{Kafka: &spec.KafkaSink{}, Routes: []spec.Route{{To: `event.topc`}}},
			Message: spec.Message{Validation: []spec.Validation{{
				Schema: schema(`{"type": "objekt"}`),
				Rules:  []spec.Rule{{Rule: `payload.total >`, Message: "a"}},
			}, {Schema: &spec.PayloadSchema{File: "/nowhere/order.json"}}}, Transform: []spec.Transformation{{Payload: `payload.card.size()`}}},
		},
	}
	_, err := pipeline.New(cfg, pipeline.Options{})
	if err == nil {
		t.Fatal("everything is fine")
	}
	for i, want := range []string{
		"sink.routes[0].to: line 1, column 6: undefined field 'topc'",
		"message.validation[0].schema.inline: it is not a JSON Schema: ",
		"message.validation[0].rules[0].rule: line 1, column 16: Syntax error",
		"message.validation[1].schema.file: open /nowhere/order.json: no such file or directory; name a file that can be read",
		"message.transform[0].payload: line 1, column 1: it makes a int; write one that makes a map",
	} {
		lines := strings.Split(err.Error(), "\n")
		need.That(t, len(lines) > i && strings.HasPrefix(lines[i], want), "error %v\nwant %s", err, want)
	}
}

// What is invalid is dead at once, and the rest of its batch is delivered, in order, each with its own result.
//
// CONTRACT: C-72
// REQUIREMENT: STORAGE-39, STORAGE-56
func TestInvalidEventIsDeadAndTheRestIsDelivered(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{Validation: []spec.Validation{
				{Types: []string{"Placed"}, Schema: schema(`{"properties": {"total": {"type": "number"}}}`),
					Rules: []spec.Rule{{Rule: `payload.total > 0`, Message: "an order has a total"}}},
				{Rules: []spec.Rule{{Rule: `!has(payload.forbidden)`, Message: "nothing forbidden"}}},
			}, Transform: []spec.Transformation{
				{Payload: `without(payload, ["card"])`},
				{Types: []string{"Placed"}, Payload: `with(payload, {"by": event.topic, "members": size(payload)})`},
			}},
		},
	}, pipeline.Options{})
	inner := &sinktest.Recording{Max: 10}
	refused := errors.New("refused")
	s := p.Wrap(&sinktest.Refusing{Sink: inner, Refuse: func(e *dispatcher.Event) error {
		if e.EventType == "Refused" {
			return refused
		}
		return nil
	}})
	batch := []*dispatcher.Event{
		event("Placed", `{"total": 5, "card": "`+secret+`"}`),
		event("Placed", `{"total": -1, "card": "`+secret+`"}`),
		event("Placed", `{"total": "`+secret+`"}`),
		event("Refused", `{"x": 1}`),
		event("", `{"forbidden": "`+secret+`", "`+secret+`": 1}`),
		event("", `{"total": -1}`),
		event("Placed", `{"card": "`+secret+`"}`),
	}
	original := *batch[0]
	errs := s.Deliver(t.Context(), batch)
	for i, want := range []string{
		"",
		"schema_validation_failed: message.validation[0].rules[0]: an order has a total (payload.total > 0); correct the producer or the validation, and replay the event",
		"schema_validation_failed: message.validation[0].schema, at /total: #/properties/total/type (number, not string); correct the producer or the validation, and replay the event",
		"refused",
		"schema_validation_failed: message.validation[1].rules[0]: nothing forbidden (!has(payload.forbidden)); correct the producer or the validation, and replay the event",
		"",
		"schema_validation_failed: message.validation[0].rules[0]: an order has a total (payload.total > 0 cannot be computed: line 1, column 8: it reads a key that is not there; test it with has()); correct the producer or the validation, and replay the event",
	} {
		got := fmt.Sprint(errs[i])
		need.That(t, got == want || (want == "" && errs[i] == nil), "event %d: %s\nwant %s", i, got, want)
		if reason, permanent := dispatcher.PermanentReason(errs[i]); strings.HasPrefix(want, "schema_") != (permanent && reason == dispatcher.ReasonSchemaValidationFailed) {
			t.Errorf("event %d: %v is of reason %q", i, errs[i], reason)
		}
	}
	arrived := inner.Events()
	need.Must(t, len(arrived) == 2 && arrived[0].ID == batch[0].ID && arrived[1].ID == batch[5].ID, "%d events arrived: %v", len(arrived), arrived)
	need.Want(t, `{"by":"orders","members":1,"total":5}`, "it arrived as %s", string(arrived[0].Payload))
	need.That(t, arrived[0].EventType == "Placed" && arrived[0].Headers["region"] == "eu" && arrived[0].Attempt == 1, "it arrived without its attributes: %+v", arrived[0])
	need.That(t, string(batch[0].Payload) == string(original.Payload) && arrived[0] != batch[0], "the engine's own event was changed")
	behind := []*dispatcher.Event{event("Placed", `{"total": -1}`), event("", `{}`), event("", `{}`)}
	behind[0].PartitionKey, behind[2].PartitionKey, behind[2].Behind = "key", "key", true
	errs = s.Deliver(t.Context(), behind)
	need.That(t, errors.Is(errs[2], dispatcher.ErrBehind) && errs[1] == nil && len(inner.Events()) == 3, "an event behind an invalid one of its key: %v; %d arrived", errs[2], len(inner.Events()))
	need.That(t, s.BatchSize() == 10 && s.Probe(t.Context()) == nil && s.Close(t.Context()) == nil, "the sink behind is hidden")
}

// Up to five violations are reported, and few are kept of however many there are. CONTRACT: C-35
func TestFiveViolationsAreReported(t *testing.T) {
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Schema: schema(`{"items": {"type": "number"}}`)}}}}}, pipeline.Options{})
	for payload, findings := range map[string]int{`["a","b","c","d","e","f","g"]`: 7, `["a"` + strings.Repeat(`,"a"`, 100_000) + `]`: 100} {
		err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{event("", payload)})[0]
		need.That(t, strings.Count(err.Error(), "#/items/type") == 5 && strings.Contains(err.Error(), "; and more; correct"), "error %v", err)
		need.Want(t, findings, "%d findings, want %d", len(pipeline.Findings(err)))
	}
}

// CONTRACT: C-27, C-32
func TestRegistrySchemaFollowsTheRegistry(t *testing.T) {
	var schema pipeline.Schema
	var failure error
	calls := 0
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{SchemaRegistry: &spec.SchemaRegistry{}, Validation: []spec.Validation{{Types: []string{"Placed"}, Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "orders-value"}}}}},
		},
	}, pipeline.Options{Registry: func(_ context.Context, subject string, version int) (pipeline.Schema, error) {
		calls++
		need.That(t, subject == "orders-value" && version == 0, "got version %d of %s, want the latest of orders-value", version, subject)
		return schema, failure
	}})
	inner := &sinktest.Recording{Max: 2}
	s := p.Wrap(inner)
	deliver := func(ctx context.Context) (ofType, other error) {
		errs := s.Deliver(ctx, []*dispatcher.Event{event("Placed", `{"id": "`+secret+`"}`), event("Other", `{}`)})
		return errs[0], errs[1]
	}
	for name, c := range map[string]struct {
		schema      pipeline.Schema
		failure     error
		unavailable bool
		says        string
	}{
		"unreachable":     {failure: dispatcher.Unavailable(errors.New("cannot be reached")), unavailable: true, says: "message.validation[0].schema.registry: cannot be reached"},
		"missing":         {failure: errors.New("not registered"), says: "message.validation[0].schema.registry: not registered"},
		"Avro":            {schema: pipeline.Schema{ID: 1, Type: "AVRO", Text: `"string"`}, says: "the latest schema of orders-value (id 1) is of type AVRO; name a subject that has a JSON Schema"},
		"no schema":       {schema: pipeline.Schema{ID: 2, Type: "JSON", Text: `{"type": 1}`}, says: "(id 2): it is not a JSON Schema"},
		"valid":           {schema: pipeline.Schema{ID: 3, Type: "JSON", Text: `{"type": "object"}`}},
		"a newer version": {schema: pipeline.Schema{ID: 4, Type: "JSON", Text: `{"$ref": "id.json"}`, References: []pipeline.Reference{{Name: "id.json", Text: `{"required": ["sku"]}`}}}, says: "id.json#/required (sku)"},
	} {
		schema, failure = c.schema, c.failure
		before := len(inner.Events())
		err, other := deliver(t.Context())
		need.That(t, other == nil, "%s: an event of another type: %v", name, other)
		need.That(t, (c.says != "" || err == nil) && (c.says == "" || strings.Contains(fmt.Sprint(err), c.says)) && dispatcher.IsUnavailable(err) == c.unavailable,
			"%s: %v", name, err)
		want := 1
		if c.says == "" {
			want = 2
		}
		need.Want(t, want, "%s: %d events arrived, want %d", len(inner.Events())-before, name)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err, _ := deliver(ended); !errors.Is(err, context.Canceled) || dispatcher.IsUnavailable(err) {
		t.Errorf("after the end of ctx: %v", err)
	}
	need.Want(t, 6, "the registry got %d calls, want 6", calls)
}

// What breaks the schema in memory is final when the registry has no newer one.
//
// CONTRACT: C-32, C-72
func TestNewerSchemaOfTheRegistryDecides(t *testing.T) {
	made := func(id int, text string) pipeline.Schema { return pipeline.Schema{ID: id, Type: "JSON", Text: text} }
	old := made(1, `{"required": ["sku"]}`)
	for name, c := range map[string]struct {
		version     int32
		newer       pipeline.Schema
		unsure      error
		failure     error
		fails, dead bool
	}{
		"a newer one that it fits":         {newer: made(2, `{}`)},
		"a newer one that it does not fit": {newer: made(2, `{"required": ["id"]}`), fails: true, dead: true},
		"no newer one":                     {newer: old, fails: true, dead: true},
		"not sure":                         {newer: old, unsure: dispatcher.Unavailable(errors.New("status 503")), fails: true},
		"a failure":                        {failure: errors.New("not registered"), fails: true},
		"a fixed version":                  {version: 1, newer: made(2, `{}`), fails: true, dead: true},
	} {
		p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{
			SchemaRegistry: &spec.SchemaRegistry{},
			Validation:     []spec.Validation{{Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "a", Version: c.version}}}},
		}}}, pipeline.Options{
			Registry: func(context.Context, string, int) (pipeline.Schema, error) { return old, nil },
			Newer: func(_ context.Context, _ string, since time.Time) (pipeline.Schema, error, error) {
				need.That(t, !since.After(time.Now()) && time.Since(since) <= time.Minute, "%s: since %s", name, since)
				return c.newer, c.unsure, c.failure
			},
		})
		err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{event("", `{}`)})[0]
		_, dead := dispatcher.PermanentReason(err)
		need.That(t, (err != nil) == c.fails && dead == c.dead, "%s: %v, dead %v; want an error %v, dead %v", name, err, dead, c.fails, c.dead)
		need.That(t, c.unsure == nil || (!dispatcher.IsUnavailable(err) && strings.HasSuffix(err.Error(), "could not be read, so it is tried again: status 503") && !strings.Contains(err.Error(), "replay")),
			"%s: %v; want the event's failure, with the registry's, and that it is tried again", name, err)
	}
}

func TestCheckReportsEachStep(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{Routes: []spec.Route{{Topics: []string{"orders", "refunds"}, To: "'a' +\n  'b'"}, {To: `event.topic`}}},
			Message: spec.Message{Validation: []spec.Validation{
				{Types: []string{"Placed"}, Schema: schema(`{}`), Rules: []spec.Rule{{Rule: "payload.total > 0", Message: "m"}}},
				{Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "orders-value", Version: 3}}},
			}, Transform: []spec.Transformation{{Payload: `without(payload, ["card"])`}}, SchemaRegistry: &spec.SchemaRegistry{}},
		},
	}, pipeline.Options{Registry: func(context.Context, string, int) (pipeline.Schema, error) {
		return pipeline.Schema{}, errors.New("unreachable")
	}})
	var reported []string
	p.Check(t.Context(), func(name, detail string, err error) {
		reported = append(reported, fmt.Sprintf("%s: %s, %v", name, detail, err))
	})
	want := []string{
		"sink.routes[0]: orders, refunds: 'a' + 'b', <nil>",
		"sink.routes[1]: every topic: event.topic, <nil>",
		"message.validation[0]: Placed: an inline schema; payload.total > 0, <nil>",
		"message.validation[1]: every type: version 3 of orders-value, message.validation[1].schema.registry: unreachable",
		`message.transform[0]: every type: without(payload, ["card"]), <nil>`,
	}
	need.Want(t, strings.Join(want, "\n"), "got\n%s", strings.Join(reported, "\n"))
}

// A pipeline of nothing costs nothing: the sink itself is called. CONTRACT: C-72
// REQUIREMENT: STORAGE-56
func TestEmptyPipelineIsTheSink(t *testing.T) {
	inner := &sinktest.Recording{}
	need.Want(t, dispatcher.Sink(inner), "the sink is wrapped for nothing", compile(t, spec.Config{}, pipeline.Options{}).Wrap(inner))
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Transform: []spec.Transformation{{Types: []string{"Placed"}, Payload: "payload"}}}}}, pipeline.Options{})
	silent := &sinktest.Func{RespondAll: func(context.Context, []*dispatcher.Event) []error { return nil }}
	s, batch := p.Wrap(silent), []*dispatcher.Event{event("Other", `{}`)}
	need.Want(t, 0, "an event that nothing is configured for costs %v allocations", testing.AllocsPerRun(100, func() { s.Deliver(context.Background(), batch) }))
}

// needs is a schema that requires a member of the payload.
func needs(member string) *spec.PayloadSchema {
	return schema(`{"required": ["` + member + `"]}`)
}

// broken are the places in the configuration that an event breaks, "" for none.
func broken(t *testing.T, p *pipeline.Pipeline, e *dispatcher.Event) string {
	t.Helper()
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{e})[0]
	var fields []string
	for _, f := range pipeline.Findings(err) {
		fields = append(fields, f.Field)
	}
	reason, _ := dispatcher.PermanentReason(err)
	need.That(t, err == nil || reason == dispatcher.ReasonSchemaValidationFailed, "%s: %v, want schema_validation_failed", e.EventType, err)
	return strings.Join(fields, " ")
}

// An entry whose type ends in * is for every type that begins so, in addition to those that are for less, for the type itself
// and for all.
// Storage: 3. Event Validation Service, validate_business_rules
// REQUIREMENT: STORAGE-40
func TestTypePrefixesSelectTheirTypes(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{Validation: []spec.Validation{
				{Types: []string{"STORAGE_*"}, Rules: []spec.Rule{{Rule: "false", Message: "storage"}}},
				{Types: []string{"STORAGE_TRANSACTION_*", "other"}, Rules: []spec.Rule{{Rule: "false", Message: "transaction"}}},
				{Types: []string{"STORAGE_TRANSACTION_BEGAN", "ü*"}, Rules: []spec.Rule{{Rule: "false", Message: "began"}}},
				{Types: []string{"STORAGE_"}, Rules: []spec.Rule{{Rule: "false", Message: "the type itself"}}},
				{Rules: []spec.Rule{{Rule: "event.type != 'all'", Message: "all"}}},
			}, Transform: []spec.Transformation{{Types: []string{"changed.*"}, Payload: `with(payload, {"changed": true})`}}},
		},
	}, pipeline.Options{})
	for kind, want := range map[string]string{
		"STORAGE_": "message.validation[0].rules[0] message.validation[3].rules[0]", "STORAGE_X": "message.validation[0].rules[0]",
		"STORAGE_TRANSACTION_": "message.validation[0].rules[0] message.validation[1].rules[0]", "STORAGE_TRANSACTION_ENDED": "message.validation[0].rules[0] message.validation[1].rules[0]",
		"STORAGE_TRANSACTION_BEGAN": "message.validation[0].rules[0] message.validation[1].rules[0] message.validation[2].rules[0]",
		"STORAGE":                   "", "other": "message.validation[1].rules[0]", "other2": "", "übrig": "message.validation[2].rules[0]", "all": "message.validation[4].rules[0]", "": "",
	} {
		need.Want(t, want, "type %q breaks %q, want %q", broken(t, p, event(kind, `{}`)), kind)
	}
	for kind, want := range map[string]string{"changed.name": `{"changed":true}`, "changed": `{}`} {
		got := sent(t, p, event(kind, `{}`))
		need.That(t, string(got.Payload) == want, "type %q became %s, want %s", kind, got.Payload, want)
	}
}

// The schema is chosen by the type and the version of the event, which is 1.0.0 for one without. A version that none
// has is refused, and what is for every version holds as well.
// Storage: 3. Event Validation Service, get_schema
// CONTRACT: C-72
// REQUIREMENT: STORAGE-37
func TestSchemaByVersion(t *testing.T) {
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{
		{Types: []string{"Placed"}, Versions: []string{"1.*"}, Schema: needs("one")},
		{Types: []string{"Placed"}, Versions: []string{"2.0.0", "2.1.0"}, Schema: needs("two")},
		{Types: []string{"Plac*"}, Schema: needs("every")},
		{Types: []string{"Ruled"}, Versions: []string{"2"}, Rules: []spec.Rule{{Rule: "false", Message: "two"}}},
	}}}}, pipeline.Options{})
	for _, test := range []struct{ kind, header, version, want string }{
		{"Placed", "", "", "message.validation[0].schema message.validation[2].schema"},
		{"Placed", "event_version", "1.7.0", "message.validation[0].schema message.validation[2].schema"},
		{"Placed", "event_version", "2.1.0", "message.validation[1].schema message.validation[2].schema"},
		{"Placed", "schema_version", "2.0.0", "message.validation[1].schema message.validation[2].schema"},
		{"Placed", "event_version", "2.1", "message.validation[0].versions"},
		{"Placed", "schema_version", "3", "message.validation[0].versions"},
		{"Placed2", "event_version", "3", "message.validation[2].schema"},
		{"Ruled", "event_version", "2", "message.validation[3].rules[0]"},
		{"Ruled", "event_version", "3", ""},
	} {
		e := event(test.kind, `{}`)
		e.Headers[test.header] = test.version
		need.Want(t, test.want, "%s with %s %q breaks %q, want %q", broken(t, p, e), test.kind, test.header, test.version)
	}

	e := event("Placed", `{}`)
	e.Headers["event_version"], e.Headers["schema_version"] = secret, "1.0.0"
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{e})[0]
	want := "message.validation[0].versions: the event's version is none that has a schema (1.*, 2.0.0, 2.1.0); add an entry for its header event_version"
	need.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), secret), "%v\nwant %s", err, want)
}

// The schema of another version is not fetched.
func TestSchemaOfAnotherVersionIsNotFetched(t *testing.T) {
	var lookups []string
	o := pipeline.Options{Registry: func(_ context.Context, subject string, _ int) (pipeline.Schema, error) {
		lookups = append(lookups, subject)
		return pipeline.Schema{}, errors.New("it is down")
	}}
	registered := func(subject string) *spec.PayloadSchema {
		return &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: subject}}
	}
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{SchemaRegistry: &spec.SchemaRegistry{URL: "http://localhost"}, Validation: []spec.Validation{
				{Versions: []string{"1"}, Schema: registered("one")},
				{Versions: []string{"2"}, Schema: registered("two")},
			}},
		},
	}, o)
	e := event("Placed", `{}`)
	e.Headers["event_version"] = "2"
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{e})[0]
	need.That(t, err != nil && strings.Join(lookups, " ") == "two", "got %v and lookups of %q, want two alone", err, lookups)
}
