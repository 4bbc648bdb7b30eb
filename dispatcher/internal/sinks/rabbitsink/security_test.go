package rabbitsink

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
)

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurityFailuresNameTheRemedy(t *testing.T) {
	queue := newQueue(t, nil)
	control(t, "add_vhost", "closed")
	control(t, "add_vhost", "full")
	control(t, "set_permissions", "-p", "full", alice, "^$", ".*", "^$")
	control(t, "set_vhost_limits", "-p", "full", `{"max-connections": 0}`)
	certs := theBroker.certs
	trust, known := certs.Trust(t, certs.CA.PEM), certs.Present(t, certs.Client)
	unknown := certs.Present(t, certs.CA.Sign(t, "stranger", sinktest.InAnHour()))
	good, external := password(t, alice, sinktest.PasswordSecret), &config.Auth{Type: config.AuthExternal}
	for _, test := range []struct {
		name, listener string
		auth           *config.Auth
		tls            *config.TLS
		vhost          string
		word, text     string // "" means delivered
	}{
		{name: "password", listener: rabbitmq.Plain, auth: good},
		{name: "wrong password", listener: rabbitmq.Plain, auth: password(t, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "ACCESS_REFUSED: the login is refused; check the user and the password"},
		{name: "unknown user", listener: rabbitmq.Plain, auth: password(t, sinktest.WrongSecret, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "no right to the vhost", listener: rabbitmq.Plain, auth: password(t, outsider, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: `NOT_ALLOWED: vhost "/" is closed to the dispatcher's user; allow it`},
		{name: "no right to another vhost", listener: rabbitmq.Plain, auth: good, vhost: "closed", word: reason.AuthenticationFailed, text: `vhost "closed" is closed to the dispatcher's user`},
		{name: "missing vhost", listener: rabbitmq.Plain, auth: good, vhost: "shop", word: reason.Refusing, text: `NOT_ALLOWED: vhost "shop" does not exist; create it`},
		{name: "full vhost", listener: rabbitmq.Plain, auth: good, vhost: "full", word: reason.Refusing, text: `NOT_ALLOWED: vhost "full", or the dispatcher's user, has as many connections as it may have; raise the limit`},
		{name: "TLS, wrong password", listener: "TLS", auth: password(t, alice, sinktest.WrongSecret), tls: trust, word: reason.AuthenticationFailed, text: "; check the user and the password"},
		{name: "EXTERNAL", listener: "MUTUAL", auth: external, tls: known},
		{name: "EXTERNAL, unknown user", listener: "MUTUAL", auth: external, tls: unknown, word: reason.AuthenticationFailed, text: "that a user has the certificate's name"},
		{name: "EXTERNAL, not requested", listener: "TLS", auth: external, tls: known, word: reason.AuthenticationFailed, text: "; "},
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

// Another node is tried when one is full. RabbitMQ 3.10 has no such limit: the words are those of RabbitMQ 4.
func TestFullNode(t *testing.T) {
	full := &amqp.Error{Code: amqp.NotAllowed, Reason: "NOT_ALLOWED - connection refused: node connection limit (100) is reached", Server: true}
	s := &sink{addresses: "rabbitmq.example:5672"}
	err := s.unreachable(t.Context(), full)
	sinktest.Want(t, "a full node", err, true, reason.Refusing, "NOT_ALLOWED: the node has as many connections as it takes; raise its connection_max, or list more nodes in addresses")
	if isLogin(full) {
		t.Error("a full node ends the search for a node that takes the connection")
	}
	for _, text := range []string{
		"NOT_ALLOWED - access to vhost 'node connection limit' refused for user 'alice'",
		"NOT_ALLOWED - access to vhost '/' refused for user 'alice': connection limit (100) is reached",
		"NOT_ALLOWED - connection refused for user 'alice': user connection limit (100) is reached",
	} {
		if !isLogin(&amqp.Error{Code: amqp.NotAllowed, Reason: text, Server: true}) {
			t.Errorf("another node is tried after %s", text)
		}
	}
}

// CONTRACT: C-32
func TestTLS(t *testing.T) {
	queue, at := newQueue(t, nil), theBroker.Address
	sinktest.TLS{
		Certificates: theBroker.certs, Plain: at(rabbitmq.Plain), Good: at("TLS"), Mutual: at("MUTUAL"), ExpiredAt: at("EXPIRED"), ElsewhereAt: at("ELSEWHERE"),
		Open: func(t *testing.T, address string, cfg *config.TLS) dispatcher.Sink {
			return openTLS(t, queue, address, cfg)
		},
		Renew: "; renew the broker's certificate", Hosts: "; use hosts in addresses that the certificate names",
		NoTLS: "; no TLS is spoken there", TLSWanted: "TLS",
	}.Run(t)
}

func openTLS(t *testing.T, queue, address string, tls *config.TLS) dispatcher.Sink {
	cfg := plainConfig(t, queue)
	cfg.Addresses, cfg.TLS = []string{address}, tls
	return open(t, cfg)
}

func TestFilesAreReadForEachConnection(t *testing.T) {
	queue := newQueue(t, nil)
	sinktest.Rotated(t, theBroker.certs, func(t *testing.T, passwordFile string) dispatcher.Sink {
		cfg := plainConfig(t, queue)
		cfg.Auth.SecretFile = passwordFile
		return open(t, cfg)
	}, func(t *testing.T, cfg *config.TLS) dispatcher.Sink {
		return openTLS(t, queue, theBroker.Address("MUTUAL"), cfg)
	})
}
