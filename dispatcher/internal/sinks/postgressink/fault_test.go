package postgressink

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// What the server responds to all events, each response made by the real one.
//
// CONTRACT: C-32, C-73
func TestServerErrorsNameTheRemedy(t *testing.T) {
	raise := `create function f() returns trigger language plpgsql as $$ begin %s end $$;
		create trigger f before insert on inbox_events for each statement execute function f()`
	for _, test := range []struct {
		name, setup string
		unavailable bool
		word, text  string
	}{
		{"no table", `drop table inbox_events`, true, reason.Refusing, `table public.inbox_events: relation "public.inbox_events" does not exist (SQLSTATE 42P01); create it`},
		{"no column", `alter table inbox_events drop headers`, true, reason.Refusing, "; add the column"},
		{"no primary key", `alter table inbox_events drop constraint inbox_events_pkey`, true, reason.Refusing, "; make id its primary key"},
		{"only reads", strings.Replace(raise, "%s", `raise 'cannot execute INSERT in a read-only transaction' using errcode = '25006';`, 1), true, reason.ConnectionFailed, "; name all servers with commas"},
		{"disk full", strings.Replace(raise, "%s", `raise 'could not extend file "base/1": No space left on device' using errcode = '53100';`, 1), false, reason.Refusing, "; free space on the server's disk"},
		{"statement timeout", strings.Replace(raise, "%s", `perform pg_sleep(100); return null;`, 1) + `; do $$ begin execute format('alter database %I set statement_timeout = 100', current_database()); end $$`, false, reason.Refusing, "statement_timeout"},
		{"connection ended", strings.Replace(raise, "%s", `perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return null;`, 1), false, reason.ConnectionFailed, "may have been inserted, so this counts as an attempt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dsn := inbox(t)
			exec(t, dsn, test.setup)
			s := open(t, settings(dsn))
			for _, err := range s.Deliver(t.Context(), newEvents(5)) {
				sinktest.Want(t, "Deliver", err, test.unavailable, test.word, test.text)
				sinktest.IsFault(t, "Deliver", err, test.name == "disk full")
			}
			if strings.HasPrefix(test.name, "no ") {
				sinktest.Want(t, "Probe", s.Probe(t.Context()), true, test.word, test.text)
			}
		})
	}
}

// A delivery that waits for the connections of others has none of its time spent, and does not report the server as
// unreachable.
//
// CONTRACT: C-32
func TestDeliveriesWaitForConnections(t *testing.T) {
	dsn := inbox(t)
	cfg := settings(dsn)
	cfg.Timeout = spec.Duration(5 * time.Second)
	s := open(t, cfg)
	conn, err := pgx.Connect(t.Context(), dsn)
	need.OK(t, err)
	defer conn.Close(context.Background())
	need.OK(t, need.Err(conn.Exec(t.Context(), "begin; lock table public.inbox_events")))
	errs := make(chan error, 2*connections)
	for range cap(errs) {
		go func() { errs <- s.Deliver(t.Context(), newEvents(1))[0] }()
	}
	for range cap(errs) {
		if err := <-errs; err == nil || dispatcher.IsUnavailable(err) {
			t.Errorf("while the table is locked a delivery ends with %v, want a time-out of its own", err)
		}
	}
}

// One event of a batch is refused, and the others are inserted.
//
// CONTRACT: C-32, C-73
func TestRefusedEventFailsAlone(t *testing.T) {
	for _, test := range []struct {
		name, setup, text string
		dead              bool
	}{
		{"check", `alter table inbox_events add constraint small check (sequence <> 38)`, `the constraint "small" refuses the event (SQLSTATE 23514); drop the table's constraint`, false},
		{"unique", `create unique index one on inbox_events (dedupe_key) where sequence >= 37`, `the constraint "one" refuses the event (SQLSTATE 23505)`, false},
		{"not null", `alter table inbox_events alter dedupe_key set not null`, `the constraint "dedupe_key" refuses the event (SQLSTATE 23502)`, false},
		{"trigger", `create function f() returns trigger language plpgsql as $$ begin if new.sequence = 38 then raise 'no: %', new.payload; end if; return new; end $$;
			create trigger f before insert on inbox_events for each row execute function f()`, "; a trigger of the table refuses the event", false},
		{"deferred", `create function f() returns trigger language plpgsql as $$ begin if new.sequence = 38 then raise 'no: %', new.payload; end if; return new; end $$;
			create constraint trigger f after insert on inbox_events deferrable initially deferred for each row execute function f()`, "; a trigger of the table refuses the event", false},
		{"in a trigger", `create function f() returns trigger language plpgsql as $$ begin if new.sequence = 38 then raise 'no: %', new.payload using errcode = '42P01'; end if; return new; end $$;
			create trigger f before insert on inbox_events for each row execute function f()`, "the server refuses the event (SQLSTATE 42P01); a trigger, a function or a policy of the table fails", false},
		{"policy", `alter table inbox_events enable row level security; create policy p on inbox_events using (true) with check (sequence <> 38); grant all on inbox_events to pg_monitor;
			do $$ begin execute format('alter database %I set role = pg_monitor', current_database()); end $$`, `violates row-level security policy for table "inbox_events" (SQLSTATE 42501); a trigger, a function or a policy`, false},
		{"data", `alter table inbox_events add number integer generated always as (100 / (sequence - 38)) stored`, "SQLSTATE 22012", false},
		{"too large", `create index on inbox_events (dedupe_key)`, "; the event is too large for the table", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dsn := inbox(t)
			exec(t, dsn, test.setup)
			batch := newEvents(100)
			for _, e := range batch {
				e.DedupeKey = e.ID.String()
			}
			switch test.name {
			case "unique":
				batch[37].DedupeKey = batch[36].DedupeKey
			case "not null":
				batch[37].DedupeKey = ""
			case "too large":
				random := make([]string, 1000)
				for i := range random {
					random[i] = newEvents(1)[0].ID.String()
				}
				batch[37].DedupeKey = strings.Join(random, "")
			}
			for i, err := range open(t, settings(dsn)).Deliver(t.Context(), batch) {
				if i != 37 {
					need.That(t, err == nil, "event %d: %v", i, err)
					continue
				}
				sinktest.Want(t, "the event", err, false, reason.Refusing, test.text)
				sinktest.IsFault(t, "the event", err, strings.Contains(test.text, "or a policy"))
				if _, dead := dispatcher.PermanentReason(err); dead != test.dead {
					t.Errorf("dead is %v, want %v: %v", dead, test.dead, err)
				}
			}
			need.Want(t, 99, "%d rows are there, want 99", len(rows(t, dsn)))
		})
	}
}

// CONTRACT: C-32, C-73
func TestLoginFailuresNameTheRemedy(t *testing.T) {
	_, dsn := server(t)
	exec(t, dsn, `create role outbox login password '`+sinktest.PasswordSecret+`'; grant usage on schema public to outbox;
		grant insert, select (id) on public.inbox_events to outbox; create role mallory login password '`+sinktest.PasswordSecret+`'`)
	as := func(user, password, db string) spec.PostgresSink {
		u, err := url.Parse(dsn)
		need.OK(t, err)
		u.User, u.Path = url.UserPassword(user, password), "/"+db
		return spec.PostgresSink{DSNFile: sinktest.File(t, "dsn", u.String())}
	}
	for _, test := range []struct {
		name       string
		cfg        spec.PostgresSink
		word, text string
	}{
		{"wrong password", as("outbox", sinktest.WrongSecret, "postgres"), reason.AuthenticationFailed, "; correct the user and the password"},
		{"unknown user", as("unknown", sinktest.PasswordSecret, "postgres"), reason.AuthenticationFailed, "; correct the user and the password"},
		{"no such database", as("outbox", sinktest.PasswordSecret, "none"), reason.Refusing, "; create the database"},
		{"no file", spec.PostgresSink{DSNFile: "/nowhere/dsn"}, reason.AuthenticationFailed, "postgres sink: sink.postgres.secretRef cannot be read; create the file"},
		{"no right", as("mallory", sinktest.PasswordSecret, "postgres"), reason.AuthenticationFailed, "grant insert, select (id) on public.inbox_events to"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, test.cfg)
			sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, test.word, test.text)
			sinktest.Want(t, "Probe", s.Probe(t.Context()), true, test.word, test.text)
		})
	}
	// A password that is rotated needs no restart.
	cfg := as("outbox", sinktest.WrongSecret, "postgres")
	s := open(t, cfg)
	sinktest.Want(t, "the wrong password", sinktest.Send(t, s), true, reason.AuthenticationFailed, "")
	good := as("outbox", sinktest.PasswordSecret, "postgres")
	cfg.DSNFile, good.DSNFile = good.DSNFile, cfg.DSNFile
	copyFile(t, cfg.DSNFile, good.DSNFile)
	if err := sinktest.Send(t, s); err != nil {
		t.Errorf("the right password, with the rights that postgres.md names: %v", err)
	}
}

// CONTRACT: C-32
func TestTLSFailuresNameTheRemedy(t *testing.T) {
	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	_, dsn := server(t)
	for _, test := range []struct {
		name       string
		leaf       sinktest.Leaf
		trusted    string
		word, text string // "" means delivered
	}{
		{"no TLS there", sinktest.Leaf{}, ca.PEM, reason.ConnectionFailed, "; turn it on there, or remove sink.tls and set sslmode=disable"},
		{"trusted", ca.Sign(t, "db", sinktest.InAnHour()), ca.PEM, "", ""},
		{"other authority", ca.Sign(t, "db", sinktest.InAnHour()), other.PEM, reason.CertificateInvalid, "; set sink.tls.caSecretRef or sink.tls.caConfigMapRef"},
		{"expired", ca.Sign(t, "db", time.Now().Add(-time.Minute)), ca.PEM, reason.CertificateInvalid, "expired"},
		{"other host", ca.Sign(t, "db", sinktest.InAnHour(), "db.example"), ca.PEM, reason.CertificateInvalid, "; connect by a name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.leaf.CertPEM != "" {
				speakTLS(t, dsn, test.leaf)
			}
			cfg := settings(strings.Replace(dsn, "sslmode=disable", "", 1))
			cfg.TLS = &spec.TLS{CAFile: sinktest.File(t, "ca.crt", test.trusted)}
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// A token is not sent without TLS, and the remedy names the sink's own fields.
func TestTokenNeedsTLS(t *testing.T) {
	s := open(t, spec.PostgresSink{DSN: "postgres://outbox@127.0.0.1:1/shop?sslmode=prefer", IAM: &spec.IAM{Provider: spec.IAMAWS, Region: "eu-central-1"}})
	sinktest.Reaches(t, s, reason.ConnectionFailed, "sink.postgres.iam needs TLS, and the connection may go without; set sslmode=verify-full in the connection string, and name")
}

// speakTLS gives a server its certificate: the server itself writes the files that it reads.
func speakTLS(t *testing.T, dsn string, leaf sinktest.Leaf) {
	t.Helper()
	for name, pem := range map[string]string{"server.crt": leaf.CertPEM, "server.key": leaf.KeyPEM} {
		exec(t, dsn, `do $do$ begin execute format('copy (select %L) to program %L', replace($$`+pem+`$$, E'\n', '|'), 'umask 077; tr "|" "\n" > `+name+`'); end $do$`)
	}
	exec(t, dsn, `alter system set ssl = on`)
	exec(t, dsn, `select pg_reload_conf()`)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); { // until the server has read them
		if served(t, dsn) == leaf.CertPEM {
			return
		}
	}
	t.Fatal("the server does not show its new certificate")
}

// Of several servers the one that takes writes is used.
//
// CONTRACT: C-32
func TestStandbyIsPassedOver(t *testing.T) {
	srv, dsn := server(t)
	standby := pgtest.Standby(t, srv)
	sinktest.Want(t, "a standby alone", sinktest.Send(t, open(t, settings(standby.DSN("postgres")))), true, reason.ConnectionFailed, "connect to the primary")
	u, err := url.Parse(dsn)
	need.OK(t, err)
	first, err := url.Parse(standby.DSN("postgres"))
	need.OK(t, err)
	u.Host = first.Host + "," + u.Host
	if err := sinktest.Send(t, open(t, settings(u.String()))); err != nil {
		t.Errorf("a standby and its primary: %v", err)
	}
}

// served is the certificate that the server shows.
func served(t *testing.T, dsn string) (pemText string) {
	t.Helper()
	cfg, err := pgconn.ParseConfig(strings.Replace(dsn, "sslmode=disable", "sslmode=require", 1))
	need.OK(t, err)
	cfg.TLSConfig.VerifyConnection = func(state tls.ConnectionState) error {
		pemText = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: state.PeerCertificates[0].Raw}))
		return nil
	}
	if conn, err := pgconn.ConnectConfig(t.Context(), cfg); err == nil {
		_ = conn.Close(t.Context())
	}
	return pemText
}
