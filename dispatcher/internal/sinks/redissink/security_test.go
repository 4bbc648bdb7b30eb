package redissink

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// login names files with a user and a password; no user is the user default.
func login(t *testing.T, cfg config.RedisSink, user, password string) config.RedisSink {
	if user != "" {
		cfg.Auth = sinktest.Login(t, config.AuthBasic, user, password)
	} else {
		cfg.Auth = &config.Auth{Type: config.AuthPassword, SecretFile: sinktest.File(t, "password", password+"\n")}
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
	cluster.Topology = config.RedisCluster
	for _, test := range []struct {
		name        string
		cfg         config.RedisSink
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
				if delivered != nil || probed != nil {
					t.Errorf("Deliver: %v, Probe: %v; want no errors", delivered, probed)
				}
				return
			}
			sinktest.Want(t, "Deliver", delivered, test.unavailable, test.word, test.text)
			sinktest.Want(t, "Probe", probed, true, test.word, test.text)
		})
	}
}

// CONTRACT: C-32, C-73
func TestTLS(t *testing.T) {
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

func openTLS(t *testing.T, address string, cfg *config.TLS) dispatcher.Sink {
	return open(t, config.RedisSink{Addresses: []string{address}, Stream: "orders", Access: config.Access{TLS: cfg, Timeout: config.Duration(2 * time.Second)}})
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
	}, func(t *testing.T, cfg *config.TLS) dispatcher.Sink { return openTLS(t, mutual.Address, cfg) })
}
