package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRabbitMQDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{rabbitmq: {addresses: ['rabbitmq.example:5672']}, auth: {type: Plain, username: u, secretFile: /p}}", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := RabbitMQSink{
		Addresses: []string{"rabbitmq.example:5672"}, VHost: "/", AttributePrefix: "ce-", Channels: 4, ConnectionName: "outbox-dispatcher",
		Heartbeat: Duration(10 * time.Second), Access: Access{ContentMode: Binary, Auth: &Auth{Type: AuthPlain, Username: "u", SecretFile: "/p"}, Timeout: Duration(30 * time.Second)},
	}
	if !reflect.DeepEqual(*c.Sink.RabbitMQ, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.RabbitMQ, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}
}

func TestRabbitMQValidate(t *testing.T) {
	for _, test := range []struct {
		want   string // "" means that it is valid
		change func(*RabbitMQSink)
	}{
		{"", func(s *RabbitMQSink) { s.TLS, s.Exchange, s.RoutingKey = &TLS{}, "amq.topic", "shop.größe" }},
		{"sink.rabbitmq.addresses has 0 entries; list 1 to 32", func(s *RabbitMQSink) { s.Addresses = nil }},
		{`sink.rabbitmq.addresses[1] is "rabbit"; write it as host:port`, func(s *RabbitMQSink) { s.Addresses = append(s.Addresses, "rabbit") }},
		{`sink.rabbitmq.addresses[0] is "a:90920"; write it as host:port`, func(s *RabbitMQSink) { s.Addresses = []string{"a:90920"} }},
		{"sink.rabbitmq.vhost has 256 bytes, and RabbitMQ takes 255; shorten it", func(s *RabbitMQSink) { s.VHost = strings.Repeat("a", 256) }},
		{"sink.rabbitmq.exchange has 256 bytes", func(s *RabbitMQSink) { s.Exchange = strings.Repeat("a", 256) }},
		{"sink.rabbitmq.routingKey has 256 bytes", func(s *RabbitMQSink) { s.RoutingKey = strings.Repeat("é", 128) }},
		{"sink.rabbitmq.connectionName has 256 bytes", func(s *RabbitMQSink) { s.ConnectionName = strings.Repeat("a", 256) }},
		{`sink.contentMode is "Batch"; choose one of Binary`, func(s *RabbitMQSink) { s.ContentMode = "Batch" }},
		{"", func(s *RabbitMQSink) { s.AttributePrefix = "cloudEvents:" }},
		{`sink.rabbitmq.attributePrefix is "cloudEvents-"; choose one of ce-, cloudEvents:, cloudEvents_`, func(s *RabbitMQSink) { s.AttributePrefix = "cloudEvents-" }},
		{"sink.rabbitmq.channels is 65; set it from 1 to 64", func(s *RabbitMQSink) { s.Channels = 65 }},
		{"sink.rabbitmq.heartbeat is 6m", func(s *RabbitMQSink) { s.Heartbeat = Duration(6 * time.Minute) }},
		{"sink.rabbitmq.heartbeat is 1.5s; set it to whole seconds", func(s *RabbitMQSink) { s.Heartbeat = Duration(1500 * time.Millisecond) }},
	} {
		s := RabbitMQSink{Addresses: []string{"rabbitmq.example:5672"}, Access: Access{Auth: &Auth{Type: AuthPlain, Username: "a", SecretFile: "b"}}}
		s.ApplyDefaults()
		test.change(&s)
		switch err := s.Validate(); {
		case test.want == "" && err != nil:
			t.Error(err)
		case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)):
			t.Errorf("error %v\nwant %s", err, test.want)
		}
	}
}
