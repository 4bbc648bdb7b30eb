package redissink

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// login names files with a user and a password; no user is the user default.
func login(t *testing.T, cfg config.RedisSink, user, password string) config.RedisSink {
	if user != "" {
		cfg.Auth = &config.RedisAuth{Basic: sinktest.Login(t, user, password)}
	} else {
		cfg.Auth = &config.RedisAuth{PasswordFile: sinktest.File(t, "password", password+"\n")}
	}
	return cfg
}

// Each way to log in, on the real server, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestLogin(t *testing.T) {
	locked := server(t, redis.Options{})
	do(t, locked, "acl", "setuser", "outbox", "on", ">"+sinktest.PasswordSecret, "+xadd", "+ping", "~orders")
	do(t, locked, "acl", "setuser", "mallory", "on", ">"+sinktest.PasswordSecret, "+ping")
	do(t, locked, "config", "set", "requirepass", sinktest.PasswordSecret)
	wanted := settings(locked)
	other := login(t, wanted, "outbox", sinktest.PasswordSecret)
	other.Stream = "invoices"
	database := login(t, wanted, "", sinktest.PasswordSecret)
	database.Database = 99
	for _, test := range []struct {
		name        string
		cfg         config.RedisSink
		unavailable bool
		word, text  string // "" means delivered
	}{
		{name: "password", cfg: login(t, wanted, "", sinktest.PasswordSecret)},
		{name: "user with the rights that doc.go names", cfg: login(t, wanted, "outbox", sinktest.PasswordSecret)},
		{name: "wrong password", cfg: login(t, wanted, "", sinktest.WrongSecret), unavailable: true, word: reason.AuthenticationFailed, text: "disabled; check the user and the password"},
		{name: "wrong password of a user", cfg: login(t, wanted, "outbox", sinktest.WrongSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "unknown user", cfg: login(t, wanted, sinktest.WrongSecret, sinktest.PasswordSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "no login", cfg: wanted, unavailable: true, word: reason.AuthenticationFailed, text: "; a login is wanted there: name the Secret"},
		{name: "no right to add", cfg: login(t, wanted, "mallory", sinktest.PasswordSecret), unavailable: true, word: reason.AuthenticationFailed, text: "; allow it, as with ACL SETUSER <user> +xadd"},
		{name: "no right to the stream", cfg: other, unavailable: true, word: reason.AuthenticationFailed, text: "~invoices"},
		{name: "no such database", cfg: database, unavailable: true, word: reason.Refusing, text: "; set database to a number that the server has"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, test.cfg)
			delivered, probed := send(t, s), s.Probe(t.Context())
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
	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	speaks := func(l sinktest.Leaf, clients string) *redis.Server {
		return server(t, redis.Options{TLS: &redis.TLS{CertPEM: l.CertPEM, KeyPEM: l.KeyPEM, ClientCAPEM: clients}})
	}
	good := ca.Sign(t, "redis", sinktest.InAnHour())
	servers := map[string]*redis.Server{
		"PLAIN": server(t, redis.Options{}), "TLS": speaks(good, ""), "MUTUAL": speaks(good, ca.PEM),
		"EXPIRED":   speaks(ca.Sign(t, "redis", time.Now().Add(-time.Minute)), ""),
		"ELSEWHERE": speaks(ca.Sign(t, "redis", sinktest.InAnHour(), "redis.example"), ""),
	}
	client, stranger := ca.Sign(t, "client", sinktest.InAnHour()), other.Sign(t, "stranger", sinktest.InAnHour())
	late := ca.Sign(t, "client", time.Now().Add(-time.Minute))
	trust := func(pem string) *config.TLS { return &config.TLS{CAFile: sinktest.File(t, "ca.crt", pem)} }
	show := func(l sinktest.Leaf) *config.TLS {
		return &config.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM), ClientCertFile: sinktest.File(t, "tls.crt", l.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", l.KeyPEM)}
	}
	named := trust(ca.PEM)
	named.ServerName = "redis.example"
	for _, test := range []struct {
		name, server string
		tls          *config.TLS
		word, text   string // "" means delivered
	}{
		{name: "trusted", server: "TLS", tls: trust(ca.PEM)},
		{name: "other authority", server: "TLS", tls: trust(other.PEM), word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "system's authorities", server: "TLS", tls: &config.TLS{}, word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "expired", server: "EXPIRED", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; renew the server's certificate"},
		{name: "other host", server: "ELSEWHERE", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; use hosts in addresses that the certificate names"},
		{name: "server name", server: "ELSEWHERE", tls: named},
		{name: "no TLS there", server: "PLAIN", tls: trust(ca.PEM), word: reason.ConnectionFailed, text: "TLS"},
		{name: "TLS wanted", server: "TLS", word: reason.ConnectionFailed, text: "whether the port wants TLS"},
		{name: "mutual", server: "MUTUAL", tls: show(client)},
		{name: "mutual, none", server: "MUTUAL", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, stranger", server: "MUTUAL", tls: show(stranger), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, expired", server: "MUTUAL", tls: show(late), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := settings(servers[test.server])
			cfg.TLS, cfg.Timeout = test.tls, config.Duration(2*time.Second)
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// Files are read for each connection, so a rotated credential needs no restart.
func TestFilesAreReadAgain(t *testing.T) {
	srv := server(t, redis.Options{})
	do(t, srv, "acl", "setuser", "outbox", "on", ">"+sinktest.PasswordSecret, "+xadd", "+ping", "~*")
	cfg := login(t, settings(srv), "outbox", sinktest.WrongSecret)
	s := open(t, cfg)
	sinktest.Want(t, "the wrong password", send(t, s), true, reason.AuthenticationFailed, "")
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, sinktest.PasswordSecret)
	if err := send(t, s); err != nil {
		t.Errorf("the right password: %v", err)
	}
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, "\n")
	sinktest.Want(t, "an empty file", s.Probe(t.Context()), true, reason.AuthenticationFailed, "is empty; write the value into it")
	if err := send(t, s); err != nil {
		t.Errorf("a connection that is open: %v", err)
	}

	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	own, ours := ca.Sign(t, "redis", sinktest.InAnHour()), ca.Sign(t, "client", sinktest.InAnHour())
	cfg = settings(server(t, redis.Options{TLS: &redis.TLS{CertPEM: own.CertPEM, KeyPEM: own.KeyPEM, ClientCAPEM: ca.PEM}}))
	cfg.TLS = &config.TLS{CAFile: sinktest.File(t, "ca.crt", other.PEM), ClientCertFile: sinktest.File(t, "tls.crt", ours.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", "")}
	s = open(t, cfg)
	sinktest.Want(t, "no key", send(t, s), true, reason.CertificateInvalid, "tls.key is empty; write the value into it")
	sinktest.Write(t, cfg.TLS.ClientKeyFile, ours.KeyPEM)
	sinktest.Want(t, "the wrong authority", send(t, s), true, reason.CertificateInvalid, "tls.caFile")
	sinktest.Write(t, cfg.TLS.CAFile, ca.PEM)
	if err := send(t, s); err != nil {
		t.Errorf("the right authority: %v", err)
	}
}
