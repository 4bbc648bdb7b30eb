package desired

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

func TestKafka(t *testing.T) {
	const dir = "/etc/outbox/secrets/sink/"
	whole := &v1alpha1.KafkaSink{
		Brokers: []string{"b:9093", "a:9093"}, Topic: "orders", Mode: v1alpha1.KafkaBinary, Encoding: v1alpha1.KafkaAvro, Subject: "shop.orders",
		ClientID: "us", Compression: "zstd", MaxMessageBytes: 2048, Timeout: metav1.Duration{Duration: time.Minute},
		SASL: &v1alpha1.KafkaSASL{Mechanism: config.SASLScram512, Credentials: &v1alpha1.SecretName{Name: "user"}},
		TLS:  &v1alpha1.TLS{CA: &v1alpha1.SecretKey{Name: "ca", Key: "root.pem"}, ClientCertificate: &v1alpha1.SecretName{Name: "own"}, ServerName: "kafka"},
	}
	token := &v1alpha1.KafkaSink{Brokers: []string{"a:9093"}, SASL: &v1alpha1.KafkaSASL{Mechanism: config.SASLOAuthBearer, Token: &v1alpha1.SecretKey{Name: "token", Key: "jwt"}}}
	for name, test := range map[string]struct {
		spec *v1alpha1.KafkaSink
		want config.KafkaSink
		refs []Ref
	}{
		"whole": {whole, config.KafkaSink{
			Brokers: []string{"a:9093", "b:9093"}, Topic: "orders", Mode: config.KafkaBinary, Encoding: config.KafkaAvro, Subject: "shop.orders",
			ClientID: "us", Compression: "zstd", MaxMessageBytes: 2048, Timeout: config.Duration(time.Minute),
			SASL: &config.KafkaSASL{Mechanism: config.SASLScram512, UsernameFile: dir + "username", PasswordFile: dir + "password"},
			TLS:  &config.TLS{CAFile: dir + "ca.crt", CertFile: dir + "tls.crt", KeyFile: dir + "tls.key", ServerName: "kafka"},
		}, []Ref{
			{"user", "username", "sink/username", "spec.sink.kafka.sasl.credentials"}, {"user", "password", "sink/password", "spec.sink.kafka.sasl.credentials"},
			{"ca", "root.pem", "sink/ca.crt", "spec.sink.kafka.tls.ca"},
			{"own", "tls.crt", "sink/tls.crt", "spec.sink.kafka.tls.clientCertificate"}, {"own", "tls.key", "sink/tls.key", "spec.sink.kafka.tls.clientCertificate"},
		}},
		"a token": {token, config.KafkaSink{Brokers: []string{"a:9093"}, SASL: &config.KafkaSASL{Mechanism: config.SASLOAuthBearer, TokenFile: dir + "token"}},
			[]Ref{{"token", "jwt", "sink/token", "spec.sink.kafka.sasl.token"}}},
		"empty tls": {&v1alpha1.KafkaSink{Brokers: []string{"a:9093"}, TLS: &v1alpha1.TLS{}}, config.KafkaSink{Brokers: []string{"a:9093"}, TLS: &config.TLS{}}, nil},
	} {
		if got := kafkaSink(test.spec); !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, *got, test.want)
		}
		if got := kafkaRefs(test.spec); !reflect.DeepEqual(got, test.refs) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, test.refs)
		}
	}
}

// Every field of the resource must reach the file.
func TestKafkaHasNoOtherFields(t *testing.T) {
	if n := reflect.TypeFor[v1alpha1.KafkaSink]().NumField(); n != reflect.TypeFor[config.KafkaSink]().NumField() {
		t.Errorf("v1alpha1.KafkaSink has %d fields, config.KafkaSink another number of them", n)
	}
}

func TestSchemaRegistry(t *testing.T) {
	const dir = "/etc/outbox/secrets/registry/"
	obd := minimal()
	obd.Spec.SchemaRegistry = &v1alpha1.SchemaRegistry{
		URL: "https://registry.example.com", Refresh: metav1.Duration{Duration: time.Minute},
		Auth: &v1alpha1.HTTPAuth{Basic: &v1alpha1.SecretName{Name: "user"}},
		TLS:  &v1alpha1.TLS{CA: &v1alpha1.SecretKey{Name: "ca", Key: "root.pem"}, ClientCertificate: &v1alpha1.SecretName{Name: "own"}, ServerName: "registry"},
	}
	want := config.SchemaRegistry{
		URL: "https://registry.example.com", Refresh: config.Duration(time.Minute),
		Auth: &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: dir + "username", PasswordFile: dir + "password"}},
		TLS:  &config.TLS{CAFile: dir + "ca.crt", CertFile: dir + "tls.crt", KeyFile: dir + "tls.key", ServerName: "registry"},
	}
	c := Config(obd)
	if !reflect.DeepEqual(*c.SchemaRegistry, want) {
		t.Errorf("got  %+v\nwant %+v", *c.SchemaRegistry, want)
	}
	c.ApplyDefaults()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	obd.Spec.SchemaRegistry.Auth = &v1alpha1.HTTPAuth{Bearer: &v1alpha1.SecretKey{Name: "token", Key: "jwt"}}
	if got := Config(obd).SchemaRegistry.Auth; got.BearerTokenFile != dir+"bearer-token" {
		t.Errorf("a token: %+v", got)
	}
	files := map[string]string{}
	for _, ref := range DispatcherRefs(obd) {
		files[ref.Path] = ref.Secret + "/" + ref.Key
	}
	for path, key := range map[string]string{"registry/bearer-token": "token/jwt", "registry/ca.crt": "ca/root.pem", "registry/tls.crt": "own/tls.crt", "registry/tls.key": "own/tls.key"} {
		if files[path] != key {
			t.Errorf("the file %s is %q, want %s", path, files[path], key)
		}
	}
}
