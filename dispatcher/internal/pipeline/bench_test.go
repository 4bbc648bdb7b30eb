package pipeline_test

import (
	"context"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
)

const order = `{"id": 12345678, "currency": "EUR", "total": 99.50, "card": "4111111111111111",
	"customer": {"id": "c-77", "email": "ann@example.com", "name": "Ann"},
	"items": [{"sku": "a-1", "quantity": 2, "price": 19.75}, {"sku": "b-2", "quantity": 1, "price": 60.00}]}`

const orderSchema = `{"type": "object", "required": ["id", "total", "customer", "items"], "properties": {
	"id": {"type": "integer"}, "currency": {"enum": ["EUR", "USD"]}, "total": {"type": "number", "minimum": 0},
	"customer": {"type": "object", "required": ["id"], "properties": {"email": {"type": "string", "pattern": "^[^@]+@[^@]+$"}}},
	"items": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["sku", "quantity"], "properties": {"quantity": {"type": "integer", "minimum": 1}}}}}}`

// What an event of 300 bytes costs beyond its sink, by what is configured.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name string
		cfg  config.Config
	}{
		{"nothing", config.Config{}},
		{"other types only", config.Config{Message: config.Message{Transform: []config.Transformation{{Types: []string{"Other"}, Payload: "payload"}}}}},
		{"schema", config.Config{Message: config.Message{Validation: []config.Validation{{Schema: schema(orderSchema)}}}}},
		{"rule", config.Config{Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{{Rule: "payload.total > 0", Message: "m"}}}}}}},
		{"rule with a loop", config.Config{Message: config.Message{Validation: []config.Validation{{Rules: []config.Rule{{Rule: "payload.items.all(i, i.quantity > 0)", Message: "m"}}}}}}},
		{"transformation", config.Config{Message: config.Message{Transform: []config.Transformation{{Payload: `mask(without(payload, ["card"]), ["customer.email"])`}}}}},
		{"schema, rule and transformation", config.Config{
			Message: config.Message{Validation: []config.Validation{{Schema: schema(orderSchema), Rules: []config.Rule{{Rule: "payload.total > 0", Message: "m"}}}}, Transform: []config.Transformation{{Payload: `mask(without(payload, ["card"]), ["customer.email"])`}}},
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := compile(b, c.cfg, pipeline.Options{}).Wrap(confirming{})
			batch := []*dispatcher.Event{event("OrderPlaced", order)}
			b.ReportAllocs()
			for b.Loop() {
				if errs := s.Deliver(context.Background(), batch); errs[0] != nil {
					b.Fatal(errs[0])
				}
			}
		})
	}
}

// confirming takes one event at a time.
type confirming struct{ silent }

var confirmed = make([]error, 1)

func (confirming) Deliver(context.Context, []*dispatcher.Event) []error { return confirmed }
