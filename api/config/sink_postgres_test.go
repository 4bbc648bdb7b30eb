package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestPostgresDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{postgres: {database: {dsnFile: dsn, caFile: ca}}}", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := PostgresSink{
		Database: InboxDatabase{DSNFile: "dsn", CAFile: "ca", SSLMode: "verify-full"}, Table: "public.inbox_events", Timeout: Duration(30 * time.Second),
	}
	if !reflect.DeepEqual(*c.Sink.Postgres, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.Postgres, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("a small file is refused: %v", err)
	}
	c.Routes = []Route{{}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "postgres is none; remove them") {
		t.Errorf("routes are taken: %v", err)
	}
}

func TestPostgresValidate(t *testing.T) {
	for want, change := range map[string]func(*PostgresSink){
		"": func(s *PostgresSink) { s.Table = "app.inbox" },
		"sink.postgres.database is missing; set exactly one of its members":          func(s *PostgresSink) { s.Database = InboxDatabase{} },
		"sink.postgres.database has dsn and dsnFile; keep exactly one":               func(s *PostgresSink) { s.Database.DSN = "dsn" },
		"sink.postgres.database.caFile is missing, and sslMode verify-full needs it": func(s *PostgresSink) { s.Database.SSLMode = "verify-full" },
		`sink.postgres.table is "inbox"; write it as schema.table`:                   func(s *PostgresSink) { s.Table = "inbox" },
		`sink.postgres.table is "a.b; drop table c"; write it as schema.table`:       func(s *PostgresSink) { s.Table = "a.b; drop table c" },
		"sink.postgres.timeout is 1ms; set it from 100ms to 10m":                     func(s *PostgresSink) { s.Timeout = Duration(time.Millisecond) },
	} {
		s := PostgresSink{Database: InboxDatabase{DSNFile: "dsn"}}
		s.ApplyDefaults()
		change(&s)
		err := s.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Each member of a sink's database is the one of that name in what is connected to.
func TestInboxDatabaseIsADatabase(t *testing.T) {
	fields := reflect.TypeFor[InboxDatabase]()
	for i := range fields.NumField() {
		var inbox InboxDatabase
		switch field := reflect.ValueOf(&inbox).Elem().Field(i); field.Kind() {
		case reflect.String:
			field.SetString("set")
		default:
			field.Set(reflect.New(field.Type().Elem()))
		}
		database := reflect.ValueOf(inbox.Database()).FieldByName(fields.Field(i).Name)
		if want := reflect.ValueOf(inbox).Field(i).Interface(); !database.IsValid() || database.Interface() != want {
			t.Errorf("%s is lost", fields.Field(i).Name)
		}
	}
}
