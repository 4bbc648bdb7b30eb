package kafkasink

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// token is what the broker takes for OAUTHBEARER: a token without a signature.
func token(user string, until time.Time) string {
	part := func(format string, args ...any) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, format, args...))
	}
	return part(`{"alg":"none"}`) + "." + part(`{"sub":%q,"iat":%d,"exp":%d}`, user, until.Add(-2*time.Hour).Unix(), until.Unix()) + "."
}

func passwordLogin(t *testing.T, mechanism, user, password string) *config.KafkaAuth {
	return &config.KafkaAuth{Mechanism: mechanism, Basic: sinktest.Login(t, user, password)}
}

func tokenLogin(t *testing.T, token string) *config.KafkaAuth {
	return &config.KafkaAuth{Mechanism: config.SASLOAuthBearer, TokenFile: sinktest.File(t, "token", token+"\n")}
}

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurity(t *testing.T) {
	topic := newTopic(t, 1)
	ca, other := theBroker.ca, theBroker.other
	client, stranger := ca.Sign(t, "client", sinktest.InAnHour()), other.Sign(t, "stranger", sinktest.InAnHour())
	late := ca.Sign(t, "client", time.Now().Add(-time.Minute))
	trust := func(pem string) *config.TLS { return &config.TLS{CAFile: sinktest.File(t, "ca.crt", pem)} }
	show := func(l sinktest.Leaf) *config.TLS {
		return &config.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM), ClientCertFile: sinktest.File(t, "tls.crt", l.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", l.KeyPEM)}
	}
	named := trust(ca.PEM)
	named.ServerName = "kafka.example"
	for _, test := range []struct {
		name, listener string
		auth           *config.KafkaAuth
		tls            *config.TLS
		word, text     string // "" means delivered
	}{
		{name: "PLAIN", listener: "SASLTLS", auth: passwordLogin(t, config.SASLPlain, alice, sinktest.PasswordSecret), tls: trust(ca.PEM)},
		{name: "SCRAM-SHA-256", listener: "SASL", auth: passwordLogin(t, config.SASLScram256, alice, sinktest.PasswordSecret)},
		{name: "SCRAM-SHA-512", listener: "SASLTLS", auth: passwordLogin(t, config.SASLScram512, alice, sinktest.PasswordSecret), tls: trust(ca.PEM)},
		{name: "a user as it is", listener: "SASL", auth: &config.KafkaAuth{Mechanism: config.SASLScram512, Basic: &config.BasicAuth{Username: alice, PasswordFile: sinktest.File(t, "password", sinktest.PasswordSecret)}}},
		{name: "OAUTHBEARER", listener: "SASLTLS", auth: tokenLogin(t, token(alice, sinktest.InAnHour())), tls: trust(ca.PEM)},
		{name: "PLAIN, wrong password", listener: "SASL", auth: passwordLogin(t, config.SASLPlain, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.mechanism, and the user and password"},
		{name: "SCRAM-SHA-256, wrong password", listener: "SASL", auth: passwordLogin(t, config.SASLScram256, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.mechanism, and the user and password"},
		{name: "SCRAM-SHA-512, unknown user", listener: "SASL", auth: passwordLogin(t, config.SASLScram512, sinktest.WrongSecret, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; check auth.mechanism, and the user and password"},
		{name: "OAUTHBEARER, expired token", listener: "SASL", auth: tokenLogin(t, token(alice, time.Now().Add(-time.Hour))), word: reason.AuthenticationFailed, text: "; check auth.mechanism, and the user and password or token"},
		{name: "OAUTHBEARER, no token", listener: "SASL", auth: tokenLogin(t, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.mechanism, and the user and password or token"},
		{name: "no login", listener: "SASL", word: reason.ConnectionFailed, text: "may want TLS, in tls, or a login, in auth"},
		{name: "a login that nobody asked for", listener: kafka.Plain, auth: passwordLogin(t, config.SASLPlain, alice, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; no login is wanted there"},
		{name: "mechanism unknown there", listener: "SASLTLS", auth: &config.KafkaAuth{Mechanism: config.SASLAWSIAM}, tls: trust(ca.PEM), word: reason.AuthenticationFailed, text: "; set auth.mechanism to one that is enabled"},
		{name: "TLS", listener: "TLS", tls: trust(ca.PEM)},
		{name: "TLS, two authorities", listener: "TLS", tls: trust(other.PEM + ca.PEM)},
		{name: "TLS, other authority", listener: "TLS", tls: trust(other.PEM), word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "TLS, the system's roots", listener: "TLS", tls: &config.TLS{}, word: reason.CertificateInvalid, text: "; set tls.ca (in a dispatcher's file: tls.caFile)"},
		{name: "TLS, expired", listener: "EXPIRED", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; renew the broker's certificate"},
		{name: "TLS, other host", listener: "ELSEWHERE", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "; use hosts in brokers, and in the brokers' advertised.listeners, that the certificate names"},
		{name: "TLS, server name", listener: "ELSEWHERE", tls: named},
		{name: "no TLS there", listener: kafka.Plain, tls: trust(ca.PEM), word: reason.ConnectionFailed, text: "TLS"},
		{name: "TLS wanted", listener: "TLS", word: reason.ConnectionFailed, text: "whether the port wants TLS"},
		{name: "mutual", listener: "MUTUAL", tls: show(client)},
		{name: "mutual, none", listener: "MUTUAL", tls: trust(ca.PEM), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, stranger", listener: "MUTUAL", tls: show(stranger), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
		{name: "mutual, expired", listener: "MUTUAL", tls: show(late), word: reason.CertificateInvalid, text: "does not accept the client certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
			t.Setenv("AWS_SECRET_ACCESS_KEY", sinktest.WrongSecret)
			cfg := plainConfig(t, topic)
			cfg.Brokers = []string{broker(t).Address(test.listener)}
			cfg.Auth, cfg.TLS = test.auth, test.tls
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// Files are read for each connection, so a rotated credential needs no restart.
func TestFilesAreReadAgain(t *testing.T) {
	topic := newTopic(t, 1)
	cfg := plainConfig(t, topic)
	cfg.Brokers = []string{broker(t).Address("SASL")}
	cfg.Auth = passwordLogin(t, config.SASLScram256, alice, sinktest.WrongSecret)
	s := open(t, cfg)
	sinktest.Want(t, "the wrong password", send(t, s), true, reason.AuthenticationFailed, "")
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, sinktest.PasswordSecret)
	if err := send(t, s); err != nil {
		t.Errorf("the right password: %v", err)
	}
	sinktest.Write(t, cfg.Auth.Basic.PasswordFile, "\n")
	sinktest.Want(t, "an empty file", s.Probe(t.Context()), true, reason.AuthenticationFailed, "is empty; write the value into it")

	cfg = plainConfig(t, topic)
	cfg.Brokers = []string{broker(t).Address("MUTUAL")}
	client := theBroker.ca.Sign(t, "client", sinktest.InAnHour())
	cfg.TLS = &config.TLS{CAFile: sinktest.File(t, "ca.crt", theBroker.other.PEM), ClientCertFile: sinktest.File(t, "tls.crt", client.CertPEM), ClientKeyFile: sinktest.File(t, "tls.key", "")}
	s = open(t, cfg)
	sinktest.Want(t, "no key", send(t, s), true, reason.CertificateInvalid, "tls.key is empty; write the value into it")
	sinktest.Write(t, cfg.TLS.ClientKeyFile, client.KeyPEM)
	sinktest.Want(t, "the wrong authority", send(t, s), true, reason.CertificateInvalid, "tls.caFile")
	sinktest.Write(t, cfg.TLS.CAFile, theBroker.ca.PEM)
	if err := send(t, s); err != nil {
		t.Errorf("the right authority: %v", err)
	}
}
