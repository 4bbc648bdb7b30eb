package redissink

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// What Redis replies to an event, each reply made by the real server.
//
// CONTRACT: C-32, C-73
func TestServerErrorsNameTheRemedy(t *testing.T) {
	for _, test := range []struct {
		name        string
		setup       []string
		unavailable bool // else it is the destination's fault
		word, text  string
	}{
		{"full", []string{"config set maxmemory 1"}, false, reason.Refusing, "; raise maxmemory, set maxLen"},
		{"not a stream", []string{"set orders text"}, true, reason.Refusing, "; set stream to another key"},
		{"disk full", []string{"config set dir /proc", "set a b", "bgsave"}, false, reason.Refusing, "; free space on the server's disk"},
		{"too few replicas there", []string{"config set min-replicas-to-write 1"}, false, reason.Refusing, "; bring replicas back, or lower the server's min-replicas-to-write"},
		{"a replica", []string{"replicaof 127.0.0.1 1"}, true, reason.ConnectionFailed, "; set addresses to the master"},
		{"a replica without its master", []string{"config set replica-serve-stale-data no", "config set replica-read-only no", "replicaof 127.0.0.1 1"}, true, reason.ConnectionFailed, "; bring the replica's master back"},
	} {
		t.Run(test.name, func(t *testing.T) {
			srv := server(t, redis.Options{Settings: map[string]string{"enable-protected-configs": "yes", "maxmemory-policy": "noeviction", "appendonly": "no", "save": "3600 1"}})
			s := open(t, settings(srv))
			for _, command := range test.setup {
				var args []any
				for word := range strings.FieldsSeq(command) {
					args = append(args, word)
				}
				do(t, srv, args...)
			}
			var err error
			for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
				if err = sinktest.Send(t, s); err != nil { // a background save takes a moment to fail
					break
				}
			}
			sinktest.Want(t, "Deliver", err, test.unavailable, test.word, test.text)
			sinktest.IsFault(t, "Deliver", err, !test.unavailable)
			if probed := s.Probe(t.Context()); test.unavailable != (probed != nil) && test.name != "disk full" {
				t.Errorf("Deliver: %v, and Probe: %v", err, probed)
			}
		})
	}
}

// Connections that were idle for long are given up.
func TestIdleConnectionsAreDropped(t *testing.T) {
	srv := server(t, redis.Options{})
	s := open(t, settings(srv))
	old := make([]*connection, 3)
	for i := range old {
		old[i] = s.take(srv.Address)
	}
	for _, l := range old {
		s.give(l)
	}
	need.Want(t, old[2], "the connection that was used last is not taken again", s.take(srv.Address))
	old[0].used, old[1].used = time.Now().Add(-2*idleTimeout), time.Now().Add(-idleTimeout-time.Second)
	if l := s.take(srv.Address); slices.Contains(old, l) || len(s.idle[srv.Address]) != 0 {
		t.Error("a connection is kept that was idle for longer than idleTimeout")
	}
	// No delivery takes a connection to a node that is gone.
	gone := s.take("gone.example:6379")
	s.give(gone)
	s.give(s.take(srv.Address))
	need.Want(t, 1, "a connection is given up that was idle for less than idleTimeout", len(s.idle[gone.address]))
	gone.used = time.Now().Add(-2 * idleTimeout)
	s.give(s.take(srv.Address))
	if _, kept := s.idle[gone.address]; kept {
		t.Error("a connection to a node that is gone is kept for ever")
	}
	pgtest.Eventually(t, "the connection to the node that is gone is closed", func() bool {
		gone.mu.Lock()
		defer gone.mu.Unlock()
		return gone.cut
	})
}

// Where routes or topics choose the stream, one that cannot be written does not pause the others.
//
// CONTRACT: C-32
func TestOneBadStreamOfSeveralIsAFault(t *testing.T) {
	srv := server(t, redis.Options{})
	do(t, srv, "set", "orders", "text")
	cfg := settings(srv)
	cfg.Stream = ""
	s := open(t, cfg)
	err := sinktest.Send(t, s)
	sinktest.Outcome(t, "Deliver", err, sinktest.Fault, reason.Refusing, "; set stream to another key")
	if err := s.Probe(t.Context()); err != nil {
		t.Errorf("Probe checks the server alone: %v", err)
	}
}

// A response may quote the command. The sink does not.
//
// CONTRACT: C-73
func TestErrorDoesNotQuoteTheCommand(t *testing.T) {
	srv := server(t, redis.Options{Settings: map[string]string{"rename-command": `xadd ""`, "appendonly": "no"}})
	err := sinktest.Send(t, open(t, settings(srv)))
	sinktest.Want(t, "no XADD", err, false, reason.Refusing, "unknown command")
	need.That(t, !strings.Contains(err.Error(), "with args"), "the error quotes the command: %v", err)
}

// The one event that is too large for the server is dead. Those before and behind it are delivered once,
// also when the batch is more than the sockets hold.
//
// CONTRACT: C-32, C-73
func TestOnlyTheTooLargeEventIsDead(t *testing.T) {
	srv := server(t, redis.Options{Settings: map[string]string{"proto-max-bulk-len": "1mb"}})
	testTooLarge(t, srv, open(t, settings(srv)), 0)
}

// Behind an entry that is too large no replica is waited for, which is the destination's fault. That is so for the
// first one alone.
//
// CONTRACT: C-32, C-70
func TestTooLargeEventWithReplicasIsAFaultOnce(t *testing.T) {
	srv, replica := server(t, redis.Options{Settings: map[string]string{"proto-max-bulk-len": "1mb"}}), server(t, redis.Options{})
	cfg := settings(srv)
	cfg.Replicas = 1
	s := open(t, cfg)
	replicate(t, replica, srv, s)
	testTooLarge(t, srv, s, 40)
}

// testTooLarge delivers two batches with events that are too large. As many events before the first of them may be a fault.
func testTooLarge(t *testing.T, srv *redis.Server, s *sink, faults int) {
	for _, padding := range []int{10, 200_000} {
		batch := sinktest.NewEvents(100)
		for _, e := range batch {
			e.Payload = []byte(`"` + sinktest.PayloadSecret + strings.Repeat("7", padding) + `"`)
		}
		for _, i := range []int{40, 41, 99} {
			batch[i].Payload = []byte(`"` + sinktest.PayloadSecret + strings.Repeat("7", 3<<20) + `"`)
		}
		do(t, srv, "del", "orders")
		for i, err := range s.Deliver(t.Context(), batch) {
			if i == 40 || i == 41 || i == 99 {
				sinktest.Dead(t, "a large event", err, "; raise the server's proto-max-bulk-len")
			} else if i < faults {
				sinktest.IsFault(t, "an event before the first large one", err, true)
			} else if err != nil {
				t.Errorf("event %d, of %d bytes: %v", i, padding, err)
			}
		}
		seen := map[any]bool{}
		all := entries(t, client(t, srv), "orders")
		for _, m := range all {
			seen[m.Values["id"]] = true
		}
		need.That(t, len(all) == 97 && len(seen) == 97, "%d entries of %d events arrived, want 97", len(all), len(seen))
		faults = 0
	}
}

// replicate makes a server the replica of another one, and waits until the sink finds that it has copied that.
func replicate(t *testing.T, replica, of *redis.Server, s *sink) {
	t.Helper()
	host, port, _ := strings.Cut(of.Address, ":")
	do(t, replica, "replicaof", host, port)
	for end := time.Now().Add(need.Wait); ; {
		if err := sinktest.Send(t, s); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// An event that must be on a replica is not delivered before it is.
//
// CONTRACT: C-70
func TestEventWaitsForItsReplicas(t *testing.T) {
	srv, replica := server(t, redis.Options{}), server(t, redis.Options{})
	cfg := settings(srv)
	cfg.Replicas, cfg.Timeout = 1, spec.Duration(2*time.Second)
	s := open(t, cfg)
	alone := sinktest.Send(t, s)
	sinktest.Outcome(t, "without a replica", alone, sinktest.Fault, reason.Refusing, "0 of 1 replicas confirmed it in time; bring replicas back")
	replicate(t, replica, srv, s)
	if err := sinktest.Send(t, s); err != nil {
		t.Error(err)
	}
	all := entries(t, client(t, replica), "orders")
	if got := entries(t, client(t, srv), "orders"); len(all) != len(got) {
		t.Errorf("%d events are on the replica, want %d", len(all), len(got))
	}
}

// CONTRACT: C-27, C-31, C-32
func TestRedisSinkSurvivesServerFaults(t *testing.T) {
	srv := server(t, redis.Options{})
	sinktest.Faults{
		Server: srv,
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			cfg := settings(srv)
			cfg.Timeout = spec.Duration(timeout)
			return destination(t, srv, cfg)
		},
		Unconfirmed: "no response within %s; check that the server runs and responds in time", Unconnected: "no response within %s; check that it runs",
	}.Run(t)
}

// login names files with a user and a password; no user is the user default.
func login(t *testing.T, cfg spec.RedisSink, user, password string) spec.RedisSink {
	if user != "" {
		cfg.Auth = sinktest.Login(t, spec.AuthBasic, user, password)
	} else {
		cfg.Auth = &spec.Auth{Type: spec.AuthPassword, SecretFile: sinktest.File(t, "password", password+"\n")}
	}
	return cfg
}

// Each way to log in, on the real server, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestLoginFailuresNameTheRemedy(t *testing.T) {
	locked := server(t, redis.Options{})
	do(t, locked, "acl", "setuser", "outbox", "on", ">"+sinktest.PasswordSecret, "+xadd", "+ping", "~orders")
	do(t, locked, "acl", "setuser", "mallory", "on", ">"+sinktest.PasswordSecret, "+ping")
	do(t, locked, "config", "set", "requirepass", sinktest.PasswordSecret)
	wanted := settings(locked)
	other := login(t, wanted, "outbox", sinktest.PasswordSecret)
	other.Stream = "invoices"
	database := login(t, wanted, "", sinktest.PasswordSecret)
	database.Database = 99
	cluster := login(t, wanted, "", sinktest.PasswordSecret)
	cluster.Topology = spec.RedisCluster
	for _, test := range []struct {
		name        string
		cfg         spec.RedisSink
		unavailable bool
		word, text  string // "" means delivered
	}{
		{name: "password", cfg: login(t, wanted, "", sinktest.PasswordSecret)},
		{name: "user with the rights that redis.md names", cfg: login(t, wanted, "outbox", sinktest.PasswordSecret)},
		{name: "wrong password", cfg: login(t, wanted, "", sinktest.WrongSecret), unavailable: true, word: reason.AuthenticationFailed, text: "disabled; check the user and the password"},
		{name: "wrong password of a user", cfg: login(t, wanted, "outbox", sinktest.WrongSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "unknown user", cfg: login(t, wanted, sinktest.WrongSecret, sinktest.PasswordSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "no login", cfg: wanted, unavailable: true, word: reason.AuthenticationFailed, text: "; a login is wanted there: name the Secret"},
		{name: "no right to add", cfg: login(t, wanted, "mallory", sinktest.PasswordSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; allow it, as with ACL SETUSER <user> +xadd"},
		{name: "no right to the stream", cfg: other, unavailable: true, word: reason.AuthenticationFailed, text: "~invoices"},
		{name: "no such database", cfg: database, unavailable: true, word: reason.Refusing, text: "; set database to a number that the server has"},
		{name: "not a cluster", cfg: cluster, unavailable: true, word: reason.Refusing, text: "; the server is not a cluster: set topology to Standalone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, test.cfg)
			delivered, probed := sinktest.Send(t, s), s.Probe(t.Context())
			if test.word == "" {
				need.That(t, delivered == nil && probed == nil, "Deliver: %v, Probe: %v; want no errors", delivered, probed)
				return
			}
			sinktest.Want(t, "Deliver", delivered, test.unavailable, test.word, test.text)
			sinktest.Want(t, "Probe", probed, true, test.word, test.text)
		})
	}
}

// CONTRACT: C-32, C-73
func TestTLSFailuresNameTheRemedy(t *testing.T) {
	certs := sinktest.NewCertificates(t, "client", "redis.example")
	speaks := func(l sinktest.Leaf, clients string) string {
		return server(t, redis.Options{TLS: &redis.TLS{CertPEM: l.CertPEM, KeyPEM: l.KeyPEM, ClientCAPEM: clients}}).Address
	}
	sinktest.TLS{
		Certificates: certs, Plain: server(t, redis.Options{}).Address, Good: speaks(certs.Server, ""), Mutual: speaks(certs.Server, certs.CA.PEM),
		ExpiredAt: speaks(certs.Expired, ""), ElsewhereAt: speaks(certs.Elsewhere, ""),
		Open:  openTLS,
		Renew: "; renew the server's certificate", Hosts: "; use hosts in addresses that the certificate names",
		NoTLS: "TLS", TLSWanted: "whether the port wants TLS",
	}.Run(t)
}

func openTLS(t *testing.T, address string, cfg *spec.TLS) dispatcher.Sink {
	return open(t, spec.RedisSink{Addresses: []string{address}, Stream: "orders", Access: spec.Access{TLS: cfg, Timeout: spec.Duration(2 * time.Second)}})
}

func TestFilesAreReadForEachConnection(t *testing.T) {
	srv := server(t, redis.Options{})
	do(t, srv, "acl", "setuser", "outbox", "on", ">"+sinktest.PasswordSecret, "+xadd", "+ping", "~*")
	certs := sinktest.NewCertificates(t, "client", "")
	mutual := server(t, redis.Options{TLS: &redis.TLS{CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM, ClientCAPEM: certs.CA.PEM}})
	sinktest.Rotated(t, certs, func(t *testing.T, passwordFile string) dispatcher.Sink {
		cfg := login(t, settings(srv), "outbox", "")
		cfg.Auth.SecretFile = passwordFile
		return open(t, cfg)
	}, func(t *testing.T, cfg *spec.TLS) dispatcher.Sink { return openTLS(t, mutual.Address, cfg) })
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// server starts a server for this test alone. Without Redis, the test is skipped.
func server(t testing.TB, opts redis.Options) *redis.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	s, err := redis.Start(ctx, opts)
	need.Server(t, err, redis.ErrMissing)
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client is another client, of the user default.
func client(t testing.TB, s *redis.Server) *goredis.Client {
	t.Helper()
	opt := &goredis.Options{Addr: s.Address, PoolSize: 1}
	if s.TLS() {
		opt.TLSConfig = &tls.Config{InsecureSkipVerify: true} // it is this test's own
	}
	c := goredis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// do has the server do something.
func do(t testing.TB, s *redis.Server, args ...any) {
	t.Helper()
	if err := client(t, s).Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// entries are all of a stream.
func entries(t testing.TB, c goredis.Cmdable, stream string) []goredis.XMessage {
	t.Helper()
	all, err := c.XRange(t.Context(), stream, "-", "+").Result()
	need.OK(t, err)
	return all
}

func settings(s *redis.Server) spec.RedisSink {
	return spec.RedisSink{Addresses: []string{s.Address}, Stream: "orders"}
}

func open(t testing.TB, cfg spec.RedisSink) *sink {
	t.Helper()
	return sinktest.Opened(t, build(cfg, nil), nil)
}
