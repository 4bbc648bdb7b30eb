package spec

import (
	"reflect"
	"testing"
	"time"
)

// What a sink has next to its kind reaches the kind, with the default of the kind.
func TestSinksAreHandedTheirAccess(t *testing.T) {
	timeouts := map[string]time.Duration{
		"http": 10, "kafka": 30, "log": 0, "nats": 10, "postgres": 30, "pubSub": 10, "rabbitmq": 30, "redis": 10, "serviceBus": 10, "sns": 10, "sqs": 10,
	}
	for _, kind := range SinkKinds() {
		s := Sink{Auth: &Auth{Username: "a"}, TLS: &TLS{CAFile: "b"}}
		reflect.ValueOf(&s).Elem().FieldByIndex(kind.Index).Set(reflect.New(kind.Type.Elem()))
		s.ApplyDefaults()
		a, timeout := s.members()[s.Kind()].access(), Duration(timeouts[s.Kind()]*time.Second)
		if a.Auth != s.Auth || a.TLS != s.TLS || a.Timeout != timeout || s.Timeout != timeout {
			t.Errorf("%s: got %+v, want auth, tls and a timeout of %s; the sink has %s", s.Kind(), a, timeout, s.Timeout)
		}
		s.Timeout = Duration(time.Minute)
		if s.ApplyDefaults(); a.Timeout != Duration(time.Minute) {
			t.Errorf("%s: the timeout is %s, want 1m", s.Kind(), a.Timeout)
		}
		delete(timeouts, s.Kind())
	}
	if len(timeouts) > 0 {
		t.Errorf("there are no sinks %v", timeouts)
	}
}

// A clone shares no kind with what it was made of.
func TestClonesShareNothing(t *testing.T) {
	s := Sink{HTTP: &HTTPSink{URL: "https://a"}, Timeout: Duration(time.Second)}
	own := s.Clone()
	own.ApplyDefaults()
	if s.HTTP.Timeout != 0 || own.HTTP.Timeout != s.Timeout || own.HTTP.URL != s.HTTP.URL {
		t.Errorf("the clone of %+v is %+v", *s.HTTP, *own.HTTP)
	}
}

// All that a sink says of its database is in what is connected to.
func TestPostgresDatabase(t *testing.T) {
	iam := &IAM{Provider: IAMAWS}
	s := PostgresSink{DSN: "a", DSNFile: "b", IAM: iam, Access: Access{TLS: &TLS{CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e"}}}
	want := Database{DSN: "a", DSNFile: "b", Schema: "outbox", CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e", IAM: iam}
	if got := s.Database(); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
