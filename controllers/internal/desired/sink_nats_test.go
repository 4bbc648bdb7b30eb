package desired

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// CONTRACT: C-100
func TestNATS(t *testing.T) {
	const dir = "/etc/outbox/secrets/sink/"
	key := func(name string) *v1alpha1.SecretKey { return &v1alpha1.SecretKey{Name: name, Key: "key"} }
	auth := func(a v1alpha1.NATSAuth) *v1alpha1.NATSSink { return &v1alpha1.NATSSink{Auth: &a} }
	for name, test := range map[string]struct {
		spec *v1alpha1.NATSSink
		want config.NATSSink
		refs []Ref
	}{
		"whole": {
			&v1alpha1.NATSSink{
				Servers: []string{"nats://b:4222", "nats://a:4222"}, Subject: "orders.events", Stream: "ORDERS",
				Mode: v1alpha1.NATSStructured, Timeout: metav1.Duration{Duration: 5 * time.Second},
				Auth: &v1alpha1.NATSAuth{Credentials: key("creds")},
				TLS:  &v1alpha1.TLS{CA: key("ca"), ClientCertificate: &v1alpha1.SecretName{Name: "own"}, ServerName: "nats"},
			},
			config.NATSSink{
				Servers: []string{"nats://a:4222", "nats://b:4222"}, Subject: "orders.events", Stream: "ORDERS",
				Mode: config.NATSStructured, Timeout: config.Duration(5 * time.Second),
				Auth: &config.NATSAuth{CredentialsFile: dir + "nats.creds"},
				TLS:  &config.TLS{CAFile: dir + "ca.crt", CertFile: dir + "tls.crt", KeyFile: dir + "tls.key", ServerName: "nats"},
			},
			[]Ref{
				{"creds", "key", "sink/nats.creds", "spec.sink.nats.auth.credentials"},
				{"ca", "key", "sink/ca.crt", "spec.sink.nats.tls.ca"},
				{"own", "tls.crt", "sink/tls.crt", "spec.sink.nats.tls.clientCertificate"}, {"own", "tls.key", "sink/tls.key", "spec.sink.nats.tls.clientCertificate"},
			},
		},
		"NKey": {auth(v1alpha1.NATSAuth{NKey: key("seed")}), config.NATSSink{Auth: &config.NATSAuth{NKeyFile: dir + "nkey"}},
			[]Ref{{"seed", "key", "sink/nkey", "spec.sink.nats.auth.nkey"}}},
		"token": {auth(v1alpha1.NATSAuth{Token: key("token")}), config.NATSSink{Auth: &config.NATSAuth{TokenFile: dir + "token"}},
			[]Ref{{"token", "key", "sink/token", "spec.sink.nats.auth.token"}}},
		"basic": {auth(v1alpha1.NATSAuth{Basic: &v1alpha1.SecretName{Name: "user"}}),
			config.NATSSink{Auth: &config.NATSAuth{Basic: &config.BasicAuth{UsernameFile: dir + "username", PasswordFile: dir + "password"}}},
			[]Ref{{"user", "username", "sink/username", "spec.sink.nats.auth.basic"}, {"user", "password", "sink/password", "spec.sink.nats.auth.basic"}}},
		"empty tls": {&v1alpha1.NATSSink{TLS: &v1alpha1.TLS{}}, config.NATSSink{TLS: &config.TLS{}}, nil},
	} {
		if got := natsSink(test.spec); !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s: got\n%+v, want\n%+v", name, *got, test.want)
		}
		if got := natsRefs(test.spec); !reflect.DeepEqual(got, test.refs) {
			t.Errorf("%s: the Secrets are\n%+v, want\n%+v", name, got, test.refs)
		}
	}
}
