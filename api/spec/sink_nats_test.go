package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestNATSDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{nats: {servers: ['nats://nats.example:4222']}}", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := NATSSink{Servers: []string{"nats://nats.example:4222"}, Access: Access{ContentMode: Binary, Timeout: Duration(10 * time.Second)}}
	if !reflect.DeepEqual(*c.Sink.NATS, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.NATS, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}
}

// CONTRACT: C-73
func TestNATSValidate(t *testing.T) {
	server := func(s string) func(*NATSSink) { return func(n *NATSSink) { n.Servers = append(n.Servers, s) } }
	for want, change := range map[string]func(*NATSSink){
		"": func(n *NATSSink) {
			n.Servers, n.TLS = []string{"nats://a:1", "tls://[::1]:4222"}, &TLS{}
			n.Subject, n.Stream = "shop.orders.größe-$1", "shop_orders-1"
		},
		"sink.nats.servers has 0 entries; list 1 to 32":                          func(n *NATSSink) { n.Servers = nil },
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; write": server("nats.example:4222"),
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; writ":  server("http://nats.example:4222"),
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; wri":   server("nats://nats.example"),
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; wr":    server("nats://nats.example:99999"),
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; w":     server("nats://user:password-4222@nats.example:4222"),
		"sink.nats.servers[1] is not nats://host:port or tls://host:port; ":      server("nats://nats.example:4222/a"),
		`sink.nats.subject is "a b", to which events cannot go; use at most`:     func(n *NATSSink) { n.Subject = "a b" },
		`sink.nats.subject is "a.>", to which events cannot go`:                  func(n *NATSSink) { n.Subject = "a.>" },
		`sink.nats.subject is "a..b", to which events cannot go`:                 func(n *NATSSink) { n.Subject = "a..b" },
		`sink.nats.subject is "$JS.API.STREAM.PURGE.A", to which events cannot`:  func(n *NATSSink) { n.Subject = "$JS.API.STREAM.PURGE.A" },
		`sink.nats.subject is "_INBOX.a", to which events cannot go`:             func(n *NATSSink) { n.Subject = "_INBOX.a" },
		`sink.nats.stream is "a.b", which no stream can be named; use`:           func(n *NATSSink) { n.Stream = "a.b" },
		`sink.contentMode is "Batch"; choose one of Binary, Structured`:          func(n *NATSSink) { n.ContentMode = "Batch" },
	} {
		n := NATSSink{Servers: []string{"nats://nats.example:4222"}}
		change(&n)
		n.ApplyDefaults()
		switch err := n.Validate(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "password-4222")):
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
}
