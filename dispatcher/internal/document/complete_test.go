package document

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Settings that were made in Go get the defaults, keep their files, and are refused with the API server's words.
//
// CONTRACT: C-73, C-101
func TestCompleteIsWhatAnObjectWouldBe(t *testing.T) {
	auth := &spec.Auth{Type: spec.AuthPlain, UsernameFile: "/a/user", SecretFile: "/a/password"}
	tls := &spec.TLS{CAFile: "/b/ca", ClientCertFile: "/c/cert", ClientKeyFile: "/d/key"}
	c := spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{Kafka: &spec.KafkaSink{Brokers: []string{"kafka:9092"}}, Auth: auth, TLS: tls},
			Message: spec.Message{Headers: []spec.MessageHeader{{Name: "x-id", Expression: "event.id"}}, Validation: []spec.Validation{
				{Schema: &spec.PayloadSchema{File: "/e/order.json"}}, {Rules: []spec.Rule{{Rule: "true", Message: "m"}}},
			}},
		},
	}
	made, err := Complete(c)
	need.OK(t, err)
	k := made.Sink.Kafka
	if k.ClientID != "outbox-dispatcher" || k.ContentMode != spec.Binary || k.Timeout != spec.Duration(30*time.Second) || k.Auth.UsernameFile != auth.UsernameFile || k.Auth.SecretFile != auth.SecretFile || k.TLS.CAFile+k.TLS.ClientCertFile+k.TLS.ClientKeyFile != "/b/ca/c/cert/d/key" {
		t.Errorf("the sink is %+v, with %+v and %+v", k, k.Auth, k.TLS)
	}
	m := made.Message
	need.That(t, m.Format == spec.FormatCloudEvents && slices.Equal(m.Headers, c.Message.Headers) && m.Validation[0].Schema.File == "/e/order.json", "the message is %+v", m)
	inbox, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Postgres: &spec.PostgresSink{DSN: "host=db"}}}})
	need.OK(t, err)
	p := inbox.Sink.Postgres
	need.That(t, p.DSN == "host=db" && p.DSNFile == "" && p.Table == "public.inbox_events", "the sink is %+v", p)
	hook, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &spec.HTTPSink{URL: "https://a.example", Headers: []spec.HTTPHeader{{Name: "x-team", Value: "shop"}}, SigningSecretFile: "/f"}}}})
	need.OK(t, err)
	if h := hook.Sink.HTTP; h.Headers[0].Value != "shop" || h.SigningSecretFile != "/f" {
		t.Errorf("the sink is %+v", h)
	}

	c.Sink.Kafka.MaxMessageBytes, c.Sink.Auth = 1, &spec.Auth{Type: "Password", SecretFile: "/a"}
	for _, want := range []string{
		"spec.sink.kafka.maxMessageBytes: Invalid value: 1: spec.sink.kafka.maxMessageBytes in body should be greater than or equal to 1024", "spec.sink.auth: Invalid value: ",
	} {
		_, err := Complete(c)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
	for _, h := range []spec.HTTPSink{
		{URL: "http://u:hunter2@consumer.example"}, {URL: "http://u:hunter2@host:port/"}, {URL: "http://a", Headers: []spec.HTTPHeader{{Name: "authorization", Value: "hunter2"}}},
		{URL: "http://a", Headers: []spec.HTTPHeader{{Name: "x-a", Value: "hunter2\n"}}},
	} {
		_, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &h}}})
		need.That(t, err != nil && !strings.Contains(err.Error(), "hunter2"), "%+v: %v", h, err)
	}
	if _, err := Complete(spec.Config{}); err == nil || !strings.HasPrefix(err.Error(), "spec.sink: Required value") {
		t.Errorf("without a sink: %v", err)
	}
}
