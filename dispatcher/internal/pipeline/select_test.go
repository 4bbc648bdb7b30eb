package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// needs is a schema that requires a member of the payload.
func needs(member string) *config.PayloadSchema {
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
	if reason, _ := dispatcher.PermanentReason(err); err != nil && reason != dispatcher.ReasonSchemaValidationFailed {
		t.Errorf("%s: %v, want schema_validation_failed", e.EventType, err)
	}
	return strings.Join(fields, " ")
}

// An entry whose type ends in * is for every type that begins so, in addition to those that are for less, for the type itself
// and for all.
// Storage: 3. Event Validation Service, validate_business_rules
// REQUIREMENT: STORAGE-40
func TestTypePrefixes(t *testing.T) {
	p := compile(t, config.Config{
		Message: config.Message{Validation: []config.Validation{
			{Types: []string{"STORAGE_*"}, Rules: []config.Rule{{Rule: "false", Message: "storage"}}},
			{Types: []string{"STORAGE_TRANSACTION_*", "other"}, Rules: []config.Rule{{Rule: "false", Message: "transaction"}}},
			{Types: []string{"STORAGE_TRANSACTION_BEGAN", "ü*"}, Rules: []config.Rule{{Rule: "false", Message: "began"}}},
			{Types: []string{"STORAGE_"}, Rules: []config.Rule{{Rule: "false", Message: "the type itself"}}},
			{Rules: []config.Rule{{Rule: "event.type != 'all'", Message: "all"}}},
		}, Transform: []config.Transformation{{Types: []string{"changed.*"}, Payload: `with(payload, {"changed": true})`}}},
	}, pipeline.Options{})
	for kind, want := range map[string]string{
		"STORAGE_": "message.validation[0].rules[0] message.validation[3].rules[0]", "STORAGE_X": "message.validation[0].rules[0]",
		"STORAGE_TRANSACTION_": "message.validation[0].rules[0] message.validation[1].rules[0]", "STORAGE_TRANSACTION_ENDED": "message.validation[0].rules[0] message.validation[1].rules[0]",
		"STORAGE_TRANSACTION_BEGAN": "message.validation[0].rules[0] message.validation[1].rules[0] message.validation[2].rules[0]",
		"STORAGE":                   "", "other": "message.validation[1].rules[0]", "other2": "", "übrig": "message.validation[2].rules[0]", "all": "message.validation[4].rules[0]", "": "",
	} {
		if got := broken(t, p, event(kind, `{}`)); got != want {
			t.Errorf("type %q breaks %q, want %q", kind, got, want)
		}
	}
	for kind, want := range map[string]string{"changed.name": `{"changed":true}`, "changed": `{}`} {
		if got := sent(t, p, event(kind, `{}`)); string(got.Payload) != want {
			t.Errorf("type %q became %s, want %s", kind, got.Payload, want)
		}
	}
}

// The schema is chosen by the type and the version of the event, which is 1.0.0 for one without. A version that none
// has is refused, and what is for every version holds as well.
// Storage: 3. Event Validation Service, get_schema
// CONTRACT: C-72
// REQUIREMENT: STORAGE-37
func TestSchemaByVersion(t *testing.T) {
	p := compile(t, config.Config{Message: config.Message{Validation: []config.Validation{
		{Types: []string{"Placed"}, Versions: []string{"1.*"}, Schema: needs("one")},
		{Types: []string{"Placed"}, Versions: []string{"2.0.0", "2.1.0"}, Schema: needs("two")},
		{Types: []string{"Plac*"}, Schema: needs("every")},
		{Types: []string{"Ruled"}, Versions: []string{"2"}, Rules: []config.Rule{{Rule: "false", Message: "two"}}},
	}}}, pipeline.Options{})
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
		if got := broken(t, p, e); got != test.want {
			t.Errorf("%s with %s %q breaks %q, want %q", test.kind, test.header, test.version, got, test.want)
		}
	}

	e := event("Placed", `{}`)
	e.Headers["event_version"], e.Headers["schema_version"] = secret, "1.0.0"
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{e})[0]
	want := "message.validation[0].versions: the event's version is none that has a schema (1.*, 2.0.0, 2.1.0); add an entry for its header event_version"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// The schema of another version is not fetched.
func TestSchemaOfAnotherVersionIsNotFetched(t *testing.T) {
	var lookups []string
	o := pipeline.Options{Registry: func(_ context.Context, subject string, _ int) (pipeline.Schema, error) {
		lookups = append(lookups, subject)
		return pipeline.Schema{}, errors.New("it is down")
	}}
	registered := func(subject string) *config.PayloadSchema {
		return &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: subject}}
	}
	p := compile(t, config.Config{
		Message: config.Message{SchemaRegistry: &config.SchemaRegistry{URL: "http://localhost"}, Validation: []config.Validation{
			{Versions: []string{"1"}, Schema: registered("one")},
			{Versions: []string{"2"}, Schema: registered("two")},
		}},
	}, o)
	e := event("Placed", `{}`)
	e.Headers["event_version"] = "2"
	if err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{e})[0]; err == nil || strings.Join(lookups, " ") != "two" {
		t.Errorf("got %v and lookups of %q, want two alone", err, lookups)
	}
}
