package desired

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

func TestRedis(t *testing.T) {
	const dir = "/etc/outbox/secrets/sink/"
	length, number := int64(1000), int32(3)
	whole := &v1alpha1.RedisSink{
		Addresses: []string{"b:6379", "a:6379"}, Cluster: true, Stream: "orders", MaxLen: &length, Mode: v1alpha1.RedisStructured, Replicas: 2,
		Timeout: metav1.Duration{Duration: time.Minute}, Database: &number, Auth: &v1alpha1.RedisAuth{Basic: &v1alpha1.SecretName{Name: "user"}},
		TLS: &v1alpha1.TLS{CA: &v1alpha1.SecretKey{Name: "ca", Key: "root.pem"}, ClientCertificate: &v1alpha1.SecretName{Name: "own"}, ServerName: "redis"},
	}
	password := &v1alpha1.RedisSink{Addresses: []string{"a:6379"}, Auth: &v1alpha1.RedisAuth{Password: &v1alpha1.SecretKey{Name: "redis", Key: "redis-password"}}}
	for name, test := range map[string]struct {
		spec *v1alpha1.RedisSink
		want config.RedisSink
		refs []Ref
	}{
		"whole": {whole, config.RedisSink{
			Addresses: []string{"a:6379", "b:6379"}, Cluster: true, Stream: "orders", MaxLen: 1000, Mode: config.RedisStructured, Replicas: 2,
			Timeout: config.Duration(time.Minute), Database: 3, UsernameFile: dir + "username", PasswordFile: dir + "password",
			TLS: &config.TLS{CAFile: dir + "ca.crt", CertFile: dir + "tls.crt", KeyFile: dir + "tls.key", ServerName: "redis"},
		}, []Ref{
			{"user", "username", "sink/username", "spec.sink.redis.auth.basic"}, {"user", "password", "sink/password", "spec.sink.redis.auth.basic"},
			{"ca", "root.pem", "sink/ca.crt", "spec.sink.redis.tls.ca"},
			{"own", "tls.crt", "sink/tls.crt", "spec.sink.redis.tls.clientCertificate"}, {"own", "tls.key", "sink/tls.key", "spec.sink.redis.tls.clientCertificate"},
		}},
		"a password": {password, config.RedisSink{Addresses: []string{"a:6379"}, PasswordFile: dir + "password"},
			[]Ref{{"redis", "redis-password", "sink/password", "spec.sink.redis.auth.password"}}},
	} {
		if got := redisSink(test.spec); !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, *got, test.want)
		}
		if got := sinkRefs(v1alpha1.Sink{Redis: test.spec}); !reflect.DeepEqual(got, test.refs) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, test.refs)
		}
	}
	if got := sink(v1alpha1.Sink{Redis: password}); got.Kind() != "redis" {
		t.Errorf("the sink is %q", got.Kind())
	}
	// Every field of the resource must reach the file; auth are two there.
	if n := reflect.TypeFor[v1alpha1.RedisSink]().NumField(); n+1 != reflect.TypeFor[config.RedisSink]().NumField() {
		t.Errorf("v1alpha1.RedisSink has %d fields, config.RedisSink not one more", n)
	}
}
