package desired

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// The inbox's login and authority have files of their own, beside those of the outbox.
func TestPostgres(t *testing.T) {
	const dir, field = "/etc/outbox/secrets/sink/", "spec.sink.postgres.database.secret"
	keys := &v1alpha1.PostgresSink{
		Database: v1alpha1.InboxDatabase{
			Secret: v1alpha1.DatabaseSecret{Name: "db", Keys: &v1alpha1.ConnectionKeys{Host: "h", Port: "p", Database: "d", User: "u", Password: "w"}},
			TLS:    &v1alpha1.DatabaseTLS{Mode: "verify-full", CA: &v1alpha1.SecretKey{Name: "ca", Key: "root.pem"}},
		},
		Table: "app.inbox", Timeout: metav1.Duration{Duration: time.Minute},
	}
	dsn := &v1alpha1.PostgresSink{Database: v1alpha1.InboxDatabase{Secret: v1alpha1.DatabaseSecret{Name: "db"}}}
	for name, test := range map[string]struct {
		spec *v1alpha1.PostgresSink
		want config.PostgresSink
		refs []Ref
	}{
		"keys": {keys, config.PostgresSink{
			Database: config.InboxDatabase{
				Connection: &config.Connection{HostFile: dir + "database/host", PortFile: dir + "database/port", DatabaseFile: dir + "database/dbname",
					UserFile: dir + "database/username", PasswordFile: dir + "database/password"},
				SSLMode: "verify-full", CAFile: dir + "ca.crt",
			},
			Table: "app.inbox", Timeout: config.Duration(time.Minute),
		}, []Ref{
			{"db", "h", "sink/database/host", field}, {"db", "p", "sink/database/port", field}, {"db", "d", "sink/database/dbname", field},
			{"db", "u", "sink/database/username", field}, {"db", "w", "sink/database/password", field},
			{"ca", "root.pem", "sink/ca.crt", "spec.sink.postgres.database.tls.ca"},
		}},
		"a connection string": {dsn, config.PostgresSink{Database: config.InboxDatabase{DSNFile: dir + "database/dsn"}},
			[]Ref{{"db", "dsn", "sink/database/dsn", field}}},
	} {
		if got := postgresSink(test.spec); !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, *got, test.want)
		}
		if got := sinkRefs(v1alpha1.Sink{Postgres: test.spec}); !reflect.DeepEqual(got, test.refs) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, test.refs)
		}
	}
	if got := sink(v1alpha1.Sink{Postgres: dsn}); got.Kind() != "postgres" {
		t.Errorf("the sink is %q", got.Kind())
	}
}
