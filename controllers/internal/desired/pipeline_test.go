package desired

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/pipeline"
)

func piped() *v1alpha1.OutboxDispatcher {
	obd := full() // with a sink that takes routes
	obd.Spec.Routes = []v1alpha1.Route{{Topics: []string{"refunds", "orders"}, To: `"/a"`}, {To: `"/b"`}}
	obd.Spec.SchemaRegistry = &v1alpha1.SchemaRegistry{URL: "https://registry.example.com"}
	obd.Spec.Validation = []v1alpha1.Validation{
		{Types: []string{"B", "A"}, Schema: &v1alpha1.PayloadSchema{ConfigMap: &v1alpha1.ConfigMapKey{Name: "schemas", Key: "order.json"}},
			Rules: []v1alpha1.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
		{Schema: &v1alpha1.PayloadSchema{Inline: "{}"}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "latest"}}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "fixed", Version: ptr.To[int32](3)}}},
	}
	obd.Spec.Transform = []v1alpha1.Transformation{{Types: []string{"A"}, Payload: "payload"}}
	obd.Spec.Sink.HTTP.ContentMode, obd.Spec.Sink.HTTP.BatchSize = "Binary", nil // which message asks for
	obd.Spec.Message = &v1alpha1.Message{Format: "Plain", Headers: []v1alpha1.MessageHeader{{Name: "X-Type", Expression: "event.type"}}}
	return obd
}

func TestPipeline(t *testing.T) {
	obd := piped()
	refs := SchemaRefs(obd)
	if want := []SchemaRef{{"schemas", "order.json", 0}}; !reflect.DeepEqual(refs, want) {
		t.Fatalf("refs %v", refs)
	}
	c := Config(obd)
	want := config.Config{
		Routes: []config.Route{{Topics: []string{"orders", "refunds"}, To: `"/a"`}, {To: `"/b"`}},
		Validation: []config.Validation{
			{Types: []string{"A", "B"}, Schema: &config.PayloadSchema{File: "/etc/outbox/schemas/0.json"}, Rules: []config.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
			{Schema: &config.PayloadSchema{Inline: "{}"}},
			{Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "latest"}}},
			{Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "fixed", Version: 3}}},
		},
		Transform: []config.Transformation{{Types: []string{"A"}, Payload: "payload"}},
		Message:   config.Message{Format: config.FormatPlain, Headers: map[string]string{"X-Type": "event.type"}},
	}
	if !reflect.DeepEqual(c.Routes, want.Routes) || !reflect.DeepEqual(c.Validation, want.Validation) || !reflect.DeepEqual(c.Transform, want.Transform) || !reflect.DeepEqual(c.Message, want.Message) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	c.ApplyDefaults()
	if err := c.ValidatePipeline(); err != nil {
		t.Error(err)
	}
}

// The samples' expressions and schemas compile, and do what their comments say.
func TestPipelineSamples(t *testing.T) {
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
		arrived := &arrivals{}
		for _, e := range events {
			event := &dispatcher.Event{Topic: e.topic, EventType: e.kind, Payload: []byte(e.payload)}
			if e.to != "" {
				if to, err := p.Route()(event); err != nil || to != e.to {
					t.Errorf("%s: topic %s goes to %q, %v", name, e.topic, to, err)
				}
				continue
			}
			arrived.payload = ""
			err := p.Wrap(arrived).Deliver(t.Context(), []*dispatcher.Event{event})[0]
			if (err == nil) != (e.arrives != "") || arrived.payload != e.arrives {
				t.Errorf("%s: %s: %v, arrived %s", name, e.payload, err, arrived.payload)
			}
		}
	}
}

// sampleEvent is an event, and where it goes or how it arrives; with neither it is invalid.
type sampleEvent struct{ topic, kind, payload, to, arrives string }

// arrivals is a sink that keeps the last payload.
type arrivals struct {
	dispatcher.Handlers
	payload string
}

func (a *arrivals) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	a.payload = string(batch[0].Payload)
	return make([]error, len(batch))
}

// sample is the file of a sample's pods, with the schemas of its ConfigMap.
func sample(t *testing.T, name string) config.Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "samples", name))
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(data), "---\n")
	obd, configMap := &v1alpha1.OutboxDispatcher{}, corev1.ConfigMap{}
	if err := errors.Join(yaml.UnmarshalStrict([]byte(first), obd), yaml.UnmarshalStrict([]byte(second), &configMap)); err != nil {
		t.Fatal(err)
	}
	c := Config(obd)
	for _, ref := range SchemaRefs(obd) {
		if ref.ConfigMap != configMap.Name || configMap.Data[ref.Key] == "" {
			t.Errorf("%s: no %v", name, ref)
		}
		c.Validation[ref.Entry].Schema = &config.PayloadSchema{Inline: configMap.Data[ref.Key]}
	}
	return c
}
