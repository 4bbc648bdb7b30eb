package desired

import (
	"reflect"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
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
	obd.Spec.Sink.HTTP.ContentMode, obd.Spec.Sink.HTTP.BatchSize = "Binary", nil // which message requires
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
