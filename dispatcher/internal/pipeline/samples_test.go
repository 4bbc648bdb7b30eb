package pipeline_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The samples' expressions and schemas compile, and do what their comments say.
func TestPipelineSamplesDoWhatTheySay(t *testing.T) {
	for name, events := range map[string][]sampleEvent{
		"routes.yaml": {
			{topic: "refund.paid", to: "shop.refunds.eu"},
			{topic: "order.placed", to: "shop.orders"},
			{topic: "stock/low", to: "shop.stock.low"},
		},
		"validation.yaml": {
			{kind: "OrderPlaced", payload: `{"id": 1, "total": 5, "items": [{"sku": "a", "quantity": 1}]}`, arrives: `{"id": 1, "total": 5, "items": [{"sku": "a", "quantity": 1}]}`},
			{kind: "OrderPlaced", payload: `{"id": 1, "voucher": "v", "total": 0, "items": [{"sku": "a", "quantity": 0}]}`},
			{kind: "OrderPlaced", payload: `{"id": 1, "total": 5, "items": []}`},
			{kind: "OrderCancelled", payload: `{"id": 1, "reason": "stock"}`, arrives: `{"id": 1, "reason": "stock"}`},
			{kind: "OrderCancelled", payload: `{"id": 1, "reason": "other"}`},
		},
		"transform.yaml": {
			{kind: "OrderPlaced", payload: `{"card": "4111", "qty": 2, "total": 1.25, "customer": {"email": "ann@example.com", "birthday": "x"}, "items": [{"serial": "12345678"}]}`,
				arrives: `{"customer":{"email":"***********.com"},"items":[{"serial":"****5678"}],"quantity":2,"total":1.25,"totalCents":125}`},
			{kind: "Other", payload: `{"card": "4111"}`, arrives: `{}`},
		},
	} {
		p, err := pipeline.New(sample(t, name), pipeline.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var arrived string
		sink := p.Wrap(&sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			arrived = string(e.Payload)
			return nil
		}})
		for _, e := range events {
			event := &dispatcher.Event{Topic: e.topic, EventType: e.kind, Payload: []byte(e.payload)}
			if e.to != "" {
				to, err := p.Route()(event)
				need.That(t, err == nil && to == e.to, "%s: topic %s goes to %q, %v", name, e.topic, to, err)
				continue
			}
			arrived = ""
			err := sink.Deliver(t.Context(), []*dispatcher.Event{event})[0]
			need.That(t, (err == nil) == (e.arrives != "") && arrived == e.arrives, "%s: %s: %v, arrived %s", name, e.payload, err, arrived)
		}
	}
}

// sampleEvent is an event, and where it goes or how it arrives; with neither it is invalid.
type sampleEvent struct{ topic, kind, payload, to, arrives string }

// sample is the configuration that a sample's spec has, with the schemas of its ConfigMap.
func sample(t *testing.T, name string) spec.Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "samples", name))
	need.OK(t, err)
	first, second, _ := strings.Cut(string(data), "---\n")
	var dispatcher struct{ Spec spec.Config }
	var schemas struct {
		Spec struct {
			Message struct {
				Validation []struct {
					Schema struct{ ConfigMapRef struct{ Name, Key string } }
				}
			}
		}
	}
	var configMap struct{ Data map[string]string }
	need.OK(t, errors.Join(yaml.Unmarshal([]byte(first), &dispatcher), yaml.Unmarshal([]byte(first), &schemas), yaml.Unmarshal([]byte(second), &configMap)))
	c := dispatcher.Spec
	for i, v := range schemas.Spec.Message.Validation {
		if key := v.Schema.ConfigMapRef.Key; key != "" {
			need.That(t, configMap.Data[key] != "", "%s: the ConfigMap has no key %s", name, key)
			c.Message.Validation[i].Schema = &spec.PayloadSchema{Inline: configMap.Data[key]}
		}
	}
	return c
}
