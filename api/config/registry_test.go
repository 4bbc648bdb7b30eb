package config

import (
	"strings"
	"testing"
	"time"
)

func TestRegistryDefaults(t *testing.T) {
	c, err := load(t, minimal+"\nmessage: {schemaRegistry: {url: 'https://registry.example.com'}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (SchemaRegistry{URL: "https://registry.example.com", Refresh: Duration(5 * time.Minute)}); *c.Message.SchemaRegistry != want {
		t.Errorf("got  %+v\nwant %+v", *c.Message.SchemaRegistry, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest registry is refused: %v", err)
	}
	c.Message.SchemaRegistry.URL = ""
	if err := c.Validate(); err == nil {
		t.Error("Validate does not look at schemaRegistry")
	}
	c.Message.SchemaRegistry, c.Sink = nil, Sink{Kafka: &KafkaSink{Brokers: []string{"a:1"}, Encoding: KafkaAvro}}
	c.ApplyDefaults()
	if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "message.schemaRegistry is missing, and sink.kafka.encoding Avro needs it; add it") {
		t.Errorf("Avro without a registry: %v", err)
	}
}

func TestRegistryValidate(t *testing.T) {
	for want, change := range map[string]func(*SchemaRegistry){
		"": func(r *SchemaRegistry) { r.TLS, r.Auth = &TLS{CAFile: "a"}, &Auth{Type: AuthToken, SecretFile: "a"} },
		`message.schemaRegistry.auth.type is "Plain"; choose one of Basic, Token`:                          func(r *SchemaRegistry) { r.Auth = &Auth{Type: AuthPlain} },
		"message.schemaRegistry.url must be an http:// or https:// URL with a host":                        func(r *SchemaRegistry) { r.URL = "registry:8081" },
		"message.schemaRegistry.url must be an http:// or https:// URL with a host and without":            func(r *SchemaRegistry) { r.URL = "https://a/?b=c" },
		"message.schemaRegistry.url must not hold a user or a password; put them into files":               func(r *SchemaRegistry) { r.URL = "https://a:b@c" },
		"message.schemaRegistry.refresh is 25h; set it from 1s to 24h":                                     func(r *SchemaRegistry) { r.Refresh = Duration(25 * time.Hour) },
		"message.schemaRegistry.tls is empty; set caFile, clientCertFile and clientKeyFile, or serverName": func(r *SchemaRegistry) { r.TLS = &TLS{} },
		"message.schemaRegistry.tls has only one of clientCertFile and clientKeyFile; set both or neither": func(r *SchemaRegistry) { r.TLS = &TLS{ClientCertFile: "a"} },
		"message.schemaRegistry.tls needs an https:// url; change url, or remove tls":                      func(r *SchemaRegistry) { r.URL, r.TLS = "http://a", &TLS{CAFile: "a"} },
	} {
		r := SchemaRegistry{URL: "https://registry.example.com/v1"}
		change(&r)
		r.ApplyDefaults()
		switch err := r.Validate(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
}
