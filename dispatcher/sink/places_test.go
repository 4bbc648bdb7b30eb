package sink_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// Places are what topics and routes name; a destination that depends on more of an event is none.
func TestPlacesAreWhatTheFileNames(t *testing.T) {
	const kafka = "{kafka: {brokers: ['kafka:9092']}}"
	for name, test := range map[string]struct {
		sink, file string
		want       []string
		err        string
	}{
		"topics":               {sink: kafka, file: "topics: [orders, payments]", want: []string{"orders", "payments"}},
		"all topics":           {sink: kafka, file: "topics: []"},
		"one topic":            {sink: "{kafka: {brokers: ['kafka:9092'], topic: all}}", file: "topics: [orders]"},
		"subjects":             {sink: "{nats: {servers: ['nats:4222']}}", file: "topics: [orders]", want: []string{"orders"}},
		"queues":               {sink: "{rabbitmq: {addresses: ['rabbit:5672']}}", file: "topics: [orders]", want: []string{"orders"}},
		"an exchange":          {sink: "{rabbitmq: {addresses: ['rabbit:5672'], exchange: shop}}", file: "topics: [orders]"},
		"streams":              {sink: "{redis: {addresses: ['redis:6379']}}", file: "topics: [orders]", want: []string{"orders"}},
		"Pub/Sub":              {sink: "{pubSub: {project: shop}}", file: "topics: [orders]", want: []string{"orders"}},
		"Service Bus":          {sink: "{serviceBus: {namespace: shop.servicebus.windows.net}}", file: "topics: [orders]", want: []string{"orders"}},
		"an address":           {sink: "{http: {url: 'http://consumer/'}}", file: "topics: [orders]"},
		"routes":               {sink: kafka, file: `{topics: [orders, refunds], sink: {routes: [{topics: [orders], to: '"shop-" + event.topic'}, {to: '"others"'}]}}`, want: []string{"shop-orders", "others"}},
		"routes of all topics": {sink: kafka, file: `{sink: {routes: [{topics: [a, b], to: 'event.namespace + "-" + event.topic'}, {to: '"others"'}]}}`, want: []string{"shop-a", "shop-b", "others"}},
		"an event's topic":     {sink: kafka, file: `{sink: {routes: [{to: 'event.topic'}]}}`},
		"an event's type":      {sink: kafka, file: `{topics: [orders], sink: {routes: [{to: 'event.type == "x" ? "x" : event.topic'}]}}`},
		"a header":             {sink: kafka, file: `{topics: [orders], sink: {routes: [{to: 'event.headers["region"]'}]}}`},
		"no route": {sink: kafka, file: `{topics: [orders, typo], sink: {routes: [{topics: [orders], to: '"o"'}]}}`, want: []string{"o"},
			err: `topic "typo": no handler for the topic: no route takes it; add one to sink.routes, or one without topics, or leave the topic out of this dispatcher`},
	} {
		cfg := config.Config{Namespace: "shop"}
		for _, part := range []string{"sink: " + test.sink, test.file} {
			if err := yaml.UnmarshalStrict([]byte(part), &cfg); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		places, err := sink.Places(cfg)
		var names []string
		for _, p := range places {
			names = append(names, p.Name)
			if again, err := sink.Places(p.Config); len(again) > 0 || err != nil {
				t.Errorf("%s: %s has places of its own, %v, %v", name, p.Name, again, err)
			}
		}
		var said string
		if err != nil {
			said = err.Error()
		}
		if !slices.Equal(names, test.want) || said != test.err {
			t.Errorf("%s: got %q and the error %q, want %q and %q", name, names, said, test.want, test.err)
		}
	}
}
