package pipeline

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Each step that stops an event names itself. CONTRACT: C-72
func TestFindingNamesTheStepThatStoppedTheEvent(t *testing.T) {
	p, err := New(config.Config{
		Sink: config.Sink{HTTP: &config.HTTPSink{}, Routes: []config.Route{{Topics: []string{"odd"}, To: "event.headers.region"}, {To: `"all"`}}},
		Message: config.Message{Validation: []config.Validation{
			{Schema: &config.PayloadSchema{Inline: `{"properties": {"a": {"type": "number"}, "lines": {"items": {"required": ["price"], "properties": {"price": {"type": "number"}}}}}}`}},
			{Rules: []config.Rule{{Rule: "payload.b > 0", Message: "m"}}},
			{Types: []string{"Unreachable"}, Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "s"}}},
		},
			Transform:      []config.Transformation{{Types: []string{"T"}, Payload: `{"c": payload.c}`}},
			SchemaRegistry: &config.SchemaRegistry{}},
	}, Options{Registry: func(context.Context, string, int) (Schema, error) {
		return Schema{}, dispatcher.Unavailable(errors.New("unreachable"))
	}})
	if err != nil {
		t.Fatal(err)
	}
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
		err := p.Wrap(routed{p}).Deliver(t.Context(), []*dispatcher.Event{&c.event})[0]
		if got := Findings(err); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v of %v, want %+v", name, got, err, c.want)
		}
		if name == "a registry" && !dispatcher.IsUnavailable(err) {
			t.Errorf("%s: %v is not Unavailable any more", name, err)
		}
	}
}

// routed is a sink that only routes.
type routed struct{ *Pipeline }

func (r routed) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	_, err := r.Route()(batch[0])
	return []error{err}
}
func (routed) Probe(context.Context) error { return nil }
func (routed) BatchSize() int              { return 1 }
func (routed) Close(context.Context) error { return nil }
