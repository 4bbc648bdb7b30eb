package kafkasink

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
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

func passwordLogin(t *testing.T, typ config.AuthType, user, password string) *config.Auth {
	return sinktest.Login(t, typ, user, password)
}

func tokenLogin(t *testing.T, token string) *config.Auth {
	return &config.Auth{Type: config.AuthOAuthBearer, SecretFile: sinktest.File(t, "token", token+"\n")}
}

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurityFailuresNameTheRemedy(t *testing.T) {
	topic := newTopic(t, 1)
	certs := theBroker.certs
	trust := certs.Trust(t, certs.CA.PEM)
	for _, test := range []struct {
		name, listener string
		auth           *config.Auth
		tls            *config.TLS
		word, text     string // "" means delivered
	}{
		{name: "PLAIN", listener: "SASLTLS", auth: passwordLogin(t, config.AuthPlain, alice, sinktest.PasswordSecret), tls: trust},
		{name: "SCRAM-SHA-256", listener: "SASL", auth: passwordLogin(t, config.AuthScramSHA256, alice, sinktest.PasswordSecret)},
		{name: "SCRAM-SHA-512", listener: "SASLTLS", auth: passwordLogin(t, config.AuthScramSHA512, alice, sinktest.PasswordSecret), tls: trust},
		{name: "a user as it is", listener: "SASL", auth: &config.Auth{Type: config.AuthScramSHA512, Username: alice, SecretFile: sinktest.File(t, "password", sinktest.PasswordSecret)}},
		{name: "OAUTHBEARER", listener: "SASLTLS", auth: tokenLogin(t, token(alice, sinktest.InAnHour())), tls: trust},
		{name: "PLAIN, wrong password", listener: "SASL", auth: passwordLogin(t, config.AuthPlain, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "SCRAM-SHA-256, wrong password", listener: "SASL", auth: passwordLogin(t, config.AuthScramSHA256, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "SCRAM-SHA-512, unknown user", listener: "SASL", auth: passwordLogin(t, config.AuthScramSHA512, sinktest.WrongSecret, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "OAUTHBEARER, expired token", listener: "SASL", auth: tokenLogin(t, token(alice, time.Now().Add(-time.Hour))), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password or token"},
		{name: "OAUTHBEARER, no token", listener: "SASL", auth: tokenLogin(t, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password or token"},
		{name: "no login", listener: "SASL", word: reason.ConnectionFailed, text: "may want TLS, in tls, or a login, in auth"},
		{name: "a login that the server does not want", listener: kafka.Plain, auth: passwordLogin(t, config.AuthPlain, alice, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; no login is wanted there"},
		{name: "mechanism unknown there", listener: "SASLTLS", auth: &config.Auth{Type: config.AuthAWSMSKIAM}, tls: trust, word: reason.AuthenticationFailed, text: "; set auth.type to one that is enabled"},
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

// CONTRACT: C-32
func TestTLS(t *testing.T) {
	topic, at := newTopic(t, 1), theBroker.Address
	sinktest.TLS{
		Certificates: theBroker.certs, Plain: at(kafka.Plain), Good: at("TLS"), Mutual: at("MUTUAL"), ExpiredAt: at("EXPIRED"), ElsewhereAt: at("ELSEWHERE"),
		Open: func(t *testing.T, address string, cfg *config.TLS) dispatcher.Sink {
			return openTLS(t, topic, address, cfg)
		},
		Renew: "; renew the broker's certificate", Hosts: "; use hosts in brokers, and in the brokers' advertised.listeners, that the certificate names",
		NoTLS: "TLS", TLSWanted: "whether the port wants TLS",
	}.Run(t)
}

func openTLS(t *testing.T, topic, address string, cfg *config.TLS) dispatcher.Sink {
	return open(t, config.KafkaSink{Brokers: []string{address}, Topic: topic, Access: config.Access{TLS: cfg}})
}

func TestFilesAreReadForEachConnection(t *testing.T) {
	topic := newTopic(t, 1)
	sinktest.Rotated(t, theBroker.certs, func(t *testing.T, passwordFile string) dispatcher.Sink {
		cfg := plainConfig(t, topic)
		cfg.Brokers = []string{broker(t).Address("SASL")}
		cfg.Auth = passwordLogin(t, config.AuthScramSHA256, alice, "")
		cfg.Auth.SecretFile = passwordFile
		return open(t, cfg)
	}, func(t *testing.T, cfg *config.TLS) dispatcher.Sink {
		return openTLS(t, topic, broker(t).Address("MUTUAL"), cfg)
	})
}
