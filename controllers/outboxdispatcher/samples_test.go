package outboxdispatcher_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// smallest is each kind of sink with what it cannot do without.
var smallest = []string{
	"http: {url: 'http://a.example'}",
	"kafka: {brokers: ['a:9092']}",
	"kafka: {brokers: ['a:9092'], auth: {mechanism: OAUTHBEARER, token: {name: a, key: b}}, tls: {}}",
	"log: {}",
	"nats: {servers: ['nats://a:4222']}",
	"postgres: {database: {secret: {name: a}}}",
	"pubSub: {project: shop-1}",
	"rabbitmq: {addresses: ['a:5672'], auth: {basic: {name: a}}}",
	"redis: {addresses: ['a:6379']}",
	"serviceBus: {namespace: a.example}",
	"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:orders'}",
	"sqs: {queueURL: 'https://sqs.eu-west-1.amazonaws.com/123456789012/orders'}",
}

// The API server and the dispatcher's file have the same defaults, and what the one accepts of a sample,
// or of the smallest resource, the other does not refuse: no pod ends at its start because of it.
//
// CONTRACT: C-100
func TestSamplesMeanTheSameInAFile(t *testing.T) {
	admin := operatortest.Admin(t)
	texts := map[string]string{}
	for _, sink := range smallest {
		texts[sink] = "apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: smallest}\n" +
			"spec: {namespace: shop, database: {secret: {name: a}}, sink: {" + sink + "}}\n"
	}
	for kind := range reflect.TypeFor[v1alpha1.Sink]().Fields() {
		name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
		if !slices.ContainsFunc(smallest, func(sink string) bool { return strings.HasPrefix(sink, name+":") }) {
			t.Errorf("smallest has no %s", name)
		}
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			for _, written := range dispatchersIn(t, text) {
				accepted := written.DeepCopy()
				if err := admin.Create(t.Context(), accepted, client.DryRunAll); err != nil {
					t.Fatal(err)
				}
				if file, resource := rendered(t, written), rendered(t, accepted); file != resource {
					t.Errorf("with the defaults of the file\n%s\nand with those of the resource\n%s", file, resource)
				}
				if err := loaded(accepted).Validate(); err != nil {
					t.Errorf("the dispatcher refuses it: %v", err)
				}
			}
		})
	}
}

// dispatchersIn are those of a file, in the namespace default.
func dispatchersIn(t *testing.T, text string) (all []*v1alpha1.OutboxDispatcher) {
	t.Helper()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		obd := &v1alpha1.OutboxDispatcher{}
		err := decoder.Decode(obd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if obd.Kind == "OutboxDispatcher" {
			obd.Namespace = metav1.NamespaceDefault
			all = append(all, obd)
		}
	}
	if len(all) == 0 && !strings.Contains(text, "\nkind: Outbox\n") {
		t.Fatal("no OutboxDispatcher")
	}
	return all
}

// loaded is the file of the pods as they load it, with a plain Outbox where one is named.
func loaded(obd *v1alpha1.OutboxDispatcher) config.Config {
	if obd.Spec.OutboxRef != nil {
		obd.Spec.Database = &v1alpha1.OutboxSpec{Secret: v1alpha1.DatabaseSecret{Name: "a"}}
	}
	c := desired.Config(obd)
	c.ApplyDefaults()
	return c
}

// rendered is that as text.
func rendered(t *testing.T, obd *v1alpha1.OutboxDispatcher) string {
	t.Helper()
	text, err := yaml.Marshal(loaded(obd))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
