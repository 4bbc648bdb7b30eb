package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestPostgresDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{postgres: {dsnFile: dsn}, tls: {caFile: ca}}", 1))
	need.OK(t, err)
	want := PostgresSink{
		DSNFile: "dsn", Table: "public.inbox_events", Access: Access{TLS: &TLS{CAFile: "ca"}, Timeout: Duration(30 * time.Second)},
	}
	if !reflect.DeepEqual(*c.Sink.Postgres, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.Postgres, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("a small file is refused: %v", err)
	}
	c.Sink.Routes = []Route{{}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "postgres is none; remove them") {
		t.Errorf("routes are taken: %v", err)
	}
}

func TestPostgresValidate(t *testing.T) {
	for want, change := range map[string]func(*PostgresSink){
		"": func(s *PostgresSink) { s.Table = "app.inbox" },
		"sink.postgres is missing; set exactly one of its members":             func(s *PostgresSink) { s.DSNFile = "" },
		"sink.postgres has dsn and dsnFile; keep exactly one":                  func(s *PostgresSink) { s.DSN = "dsn" },
		`sink.postgres.iam.provider is "IBM"; choose one of AWS`:               func(s *PostgresSink) { s.IAM = &IAM{Provider: "IBM"} },
		"sink.postgres.iam.region belongs to provider AWS; remove it":          func(s *PostgresSink) { s.IAM = &IAM{IAMGoogle, "eu-west-1"} },
		`sink.postgres.iam.region is "moon"; write a region such as`:           func(s *PostgresSink) { s.IAM = &IAM{IAMAWS, "moon"} },
		`sink.postgres.table is "inbox"; write it as schema.table`:             func(s *PostgresSink) { s.Table = "inbox" },
		`sink.postgres.table is "a.b; drop table c"; write it as schema.table`: func(s *PostgresSink) { s.Table = "a.b; drop table c" },
	} {
		s := PostgresSink{DSNFile: "dsn"}
		s.ApplyDefaults()
		change(&s)
		err := s.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// All that a sink says of its database is in what is connected to.
func TestPostgresDatabase(t *testing.T) {
	iam := &IAM{Provider: IAMAWS}
	s := PostgresSink{DSN: "a", DSNFile: "b", IAM: iam, Access: Access{TLS: &TLS{CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e"}}}
	want := Database{DSN: "a", DSNFile: "b", Schema: "outbox", CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e", IAM: iam}
	need.Want(t, want, "got  %+v\nwant %+v", s.Database())
}
