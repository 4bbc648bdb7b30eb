package rabbitsink

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
)

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurity(t *testing.T) {
	queue := newQueue(t, nil)
	control(t, "add_vhost", "closed")
	ca, other := theBroker.ca, theBroker.other
	trust := func(pem string) *config.TLS { return &config.TLS{CAFile: sinktest.File(t, "ca.crt", pem)} }
	show := func(l sinktest.Leaf) *config.TLS {
		return &config.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM), ClientCertFile: sinktest.File(t, "tls.crt", l.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", l.KeyPEM)}
	}
	known, unknown := ca.Sign(t, client, sinktest.InAnHour()), ca.Sign(t, "stranger", sinktest.InAnHour())
	stranger, late := other.Sign(t, client, sinktest.InAnHour()), ca.Sign(t, client, time.Now().Add(-time.Minute))
	named := trust(ca.PEM)
	named.ServerName = "rabbitmq.example"
	good, external := password(t, alice, sinktest.PasswordSecret), &config.RabbitMQAuth{Mechanism: config.RabbitMQExternal}
	for _, test := range []struct {
		name, listener string
		auth           *config.RabbitMQAuth
		tls            *config.TLS
		vhost          string
		word, text     string // "" means delivered
	}{
		{name: "password", listener: rabbitmq.Plain, auth: good},
		{name: "wrong password", listener: rabbitmq.Plain, auth: password(t, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "ACCESS_REFUSED: the login is refused; check the user and the password"},
		{name: "unknown user", listener: rabbitmq.Plain, auth: password(t, sinktest.WrongSecret, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "no right to the vhost", listener: rabbitmq.Plain, auth: password(t, nobody, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: `NOT_ALLOWED: vhost "/" is closed to the dispatcher's user; allow it`},
		{name: "no right to another vhost", listener: rabbitmq.Plain, auth: good, vhost: "closed", word: reason.AuthenticationFailed, text: `vhost "closed" is closed to the dispatcher's user`},
		{name: "missing vhost", listener: rabbitmq.Plain, auth: good, vhost: "shop", word: reason.Refusing, text: `NOT_ALLOWED: vhost "shop" does not exist; create it`},
		{name: "TLS", listener: "TLS", auth: good, tls: trust(ca.PEM)},
		{name: "TLS, two authorities", listener: "TLS", auth: good, tls: trust(other.PEM + ca.PEM)},
		{name: "TLS, wrong password", listener: "TLS", auth: password(t, alice, sinktest.WrongSecret), tls: trust(ca.PEM), word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "TLS, other authority", listener: "TLS", auth: good, tls: trust(other.PEM), word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "TLS, the system's roots", listener: "TLS", auth: good, tls: &config.TLS{}, word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "TLS, expired", listener: "EXPIRED", auth: good, tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; renew the broker's certificate"},
		{name: "TLS, other host", listener: "ELSEWHERE", auth: good, tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; use hosts in addresses that the certificate names"},
		{name: "TLS, server name", listener: "ELSEWHERE", auth: good, tls: named},
		{name: "no TLS there", listener: rabbitmq.Plain, auth: good, tls: trust(ca.PEM), word: reason.ConnectionFailed, text: "; no TLS is spoken there"},
		{name: "TLS wanted", listener: "TLS", auth: good, word: reason.ConnectionFailed, text: "TLS"},
		{name: "mutual", listener: "MUTUAL", auth: good, tls: show(known)},
		{name: "mutual, none", listener: "MUTUAL", auth: good, tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, stranger", listener: "MUTUAL", auth: good, tls: show(stranger), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, expired", listener: "MUTUAL", auth: good, tls: show(late), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "EXTERNAL", listener: "MUTUAL", auth: external, tls: show(known)},
		{name: "EXTERNAL, unknown user", listener: "MUTUAL", auth: external, tls: show(unknown), word: reason.AuthenticationFailed, text: "that a user has the certificate's name"},
		{name: "EXTERNAL, not asked for", listener: "TLS", auth: external, tls: show(known), word: reason.AuthenticationFailed, text: "; "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // RabbitMQ waits for 3 s before it refuses a login
			cfg := plainConfig(t, queue)
			cfg.Addresses = []string{broker(t).Address(test.listener)}
			cfg.Auth, cfg.TLS, cfg.VHost = test.auth, test.tls, test.vhost
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// Files are read for each connection, so a rotated credential needs no restart.
func TestFilesAreReadAgain(t *testing.T) {
	queue := newQueue(t, nil)
	cfg := plainConfig(t, queue)
	cfg.Auth = password(t, alice, sinktest.WrongSecret)
	s := open(t, cfg)
	sinktest.Want(t, "the wrong password", send(t, s), true, reason.AuthenticationFailed, "")
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, sinktest.PasswordSecret)
	if err := send(t, s); err != nil {
		t.Errorf("the right password: %v", err)
	}
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, "\n")
	sinktest.Want(t, "an empty file", s.Probe(t.Context()), true, reason.AuthenticationFailed, "is empty; write the value into it")
	if err := send(t, s); err != nil {
		t.Errorf("the connection that is open: %v", err)
	}

	cfg = plainConfig(t, queue)
	cfg.Addresses = []string{broker(t).Address("MUTUAL")}
	known := theBroker.ca.Sign(t, client, sinktest.InAnHour())
	cfg.TLS = &config.TLS{CAFile: sinktest.File(t, "ca.crt", theBroker.other.PEM), ClientCertFile: sinktest.File(t, "tls.crt", known.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", "")}
	s = open(t, cfg)
	sinktest.Want(t, "no key", send(t, s), true, reason.CertificateInvalid, "tls.key is empty; write the value into it")
	sinktest.Write(t, cfg.TLS.ClientKeyFile, known.KeyPEM)
	sinktest.Want(t, "the wrong authority", send(t, s), true, reason.CertificateInvalid, "tls.caFile")
	sinktest.Write(t, cfg.TLS.CAFile, theBroker.ca.PEM)
	if err := send(t, s); err != nil {
		t.Errorf("the right authority: %v", err)
	}
}
