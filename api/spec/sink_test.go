package spec

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
		need.That(t, a.Auth == s.Auth && a.TLS == s.TLS && a.Timeout == timeout && s.Timeout == timeout,
			"%s: got %+v, want auth, tls and a timeout of %s; the sink has %s", s.Kind(), a, timeout, s.Timeout)
		s.Timeout = Duration(time.Minute)
		s.ApplyDefaults()
		need.Want(t, Duration(time.Minute), "%s: the timeout is %s, want 1m", a.Timeout, s.Kind())
		delete(timeouts, s.Kind())
	}
	need.That(t, len(timeouts) == 0, "there are no sinks %v", timeouts)
}

// All that a sink says of its database is in what is connected to.
func TestPostgresDatabase(t *testing.T) {
	iam := &IAM{Provider: IAMAWS}
	s := PostgresSink{DSN: "a", DSNFile: "b", IAM: iam, Access: Access{TLS: &TLS{CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e"}}}
	want := Database{DSN: "a", DSNFile: "b", Schema: "outbox", CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e", IAM: iam}
	need.Want(t, want, "got  %+v\nwant %+v", s.Database())
}

// The resource refuses the headers that the file refuses, and names them.
func TestReservedHeadersAreThoseOfTheResource(t *testing.T) {
	crd, err := os.ReadFile("../../charts/outbox-operator/files/crds/outbox.dev_outboxdispatchers.yaml")
	need.OK(t, err)
	text := strings.Join(strings.Fields(string(crd)), " ")
	rule := regexp.MustCompile(`self\.lowerAscii\(\) in \[('authorization'[^]]*)\]`).FindStringSubmatch(text)
	named := regexp.MustCompile(`none that the dispatcher sets itself \(ce-\*, ([^)]*)\)`).FindStringSubmatch(text)
	if rule == nil || named == nil {
		t.Fatal("the resource has no rule for the names of headers")
	}
	for what, list := range map[string]string{"the rule": strings.ReplaceAll(rule[1], "'", ""), "the message": named[1]} {
		need.WantAll(t, ReservedHeaders, "%s has %q, and ReservedHeaders %q", strings.Split(list, ", "), what)
	}
}
