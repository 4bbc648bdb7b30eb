package rabbitsink

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-29, C-32
func TestMissingExchangeHoldsTheWholeBatch(t *testing.T) {
	queue := newQueue(t, nil)
	cfg := plainConfig(t, "shop.orders")
	cfg.Exchange = "missing-" + queue
	s := open(t, cfg)
	for i, err := range s.Deliver(t.Context(), sinktest.NewEvents(50)) {
		sinktest.Want(t, "Deliver", err, true, reason.Refusing, `exchange "`+cfg.Exchange+`" at `)
		if i == 0 {
			sinktest.Want(t, "Deliver", err, true, reason.Refusing, "does not exist; declare it, or correct exchange")
		}
	}
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.Refusing, "does not exist; declare it, or correct exchange")
	channel := admin(t)
	err := errors.Join(channel.ExchangeDeclare(cfg.Exchange, amqp.ExchangeDirect, true, false, false, false, nil),
		channel.QueueBind(queue, "shop.orders", cfg.Exchange, false, nil))
	need.OK(t, err)
	need.Want(t, nil, "the exchange was declared: %v", errors.Join(sinktest.Send(t, s), s.Probe(t.Context())))
	need.OK(t, channel.ExchangeDelete(cfg.Exchange, false, false))
	for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(50)) {
		sinktest.Want(t, "the exchange was deleted", err, true, reason.Refusing, "does not exist; declare it, or correct exchange")
	}
}

// A message that no queue takes is a failure, and the others of its batch are not.
//
// CONTRACT: C-29
func TestUnroutableMessageFailsAlone(t *testing.T) {
	exchange, queue := newExchange(t, amqp.ExchangeTopic, "shop.#")
	for name, test := range map[string]struct {
		exchange, key, text string
	}{
		"default exchange": {"", queue, `queue "elsewhere" at`},
		"topic exchange":   {exchange, "shop.orders", "no queue is bound for it; bind one, or correct routingKey"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := plainConfig(t, "")
			cfg.Exchange = test.exchange
			s := open(t, cfg)
			batch := sinktest.NewEvents(batchSize)
			for i, e := range batch {
				e.Topic = test.key
				if i%3 == 0 {
					e.Topic = "elsewhere"
				}
			}
			for i, err := range s.Deliver(t.Context(), batch) {
				if i%3 == 0 {
					sinktest.Outcome(t, "no queue", err, sinktest.Fault, reason.Refusing, test.text)
				} else if err != nil {
					t.Errorf("an event next to one without a queue: %v", err)
				}
			}
			need.Want(t, batchSize-(batchSize+2)/3, "%d messages arrived", len(consume(t, queue)))
		})
	}
}

// Where every event goes to one queue by the default exchange, Probe checks that.
//
// CONTRACT: C-32
func TestMissingQueueIsUnavailable(t *testing.T) {
	queue := "missing-" + sinktest.NewEvent().ID.String()
	s := open(t, plainConfig(t, queue))
	sinktest.Reaches(t, s, reason.Refusing, `queue "`+queue+`" at`)
	need.OK(t, need.Err(admin(t).QueueDeclare(queue, true, false, false, false, nil)))
	need.Want(t, nil, "the queue was declared: %v", errors.Join(sinktest.Send(t, s), s.Probe(t.Context())))
}

// An event that is too large is dead. Those that were sent with it are not.
//
// CONTRACT: C-32, C-73
func TestOnlyTheTooLargeEventIsDead(t *testing.T) {
	queue := newQueue(t, nil)
	s := open(t, plainConfig(t, queue))
	batch := sinktest.NewEvents(50)
	batch[20].Payload = []byte(`"` + sinktest.PayloadSecret + strings.Repeat("7", messageLimit) + `"`)
	batch[30].Headers["large"] = strings.Repeat("7", 200_000) // more than a frame
	batch[31].Headers[strings.Repeat("n", 253)] = "a name that is too long"
	for i, err := range s.Deliver(t.Context(), batch) {
		switch i {
		case 20:
			sinktest.Dead(t, "a large event", err, "PRECONDITION_FAILED: the message is too large: ")
		case 30:
			sinktest.Dead(t, "large headers", err, "bytes of headers, and the broker takes frames of 131072; make them smaller")
		case 31:
			sinktest.Dead(t, "a long name", err, "a header's name has 256 bytes, and RabbitMQ takes 255")
		default:
			need.Want(t, nil, "event %d, of few bytes: %v", err, i)
		}
	}
	distinct := map[string]bool{}
	all := consume(t, queue)
	for _, d := range all {
		distinct[d.MessageId] = true
	}
	need.Want(t, 47, "%d events arrived, want 47", len(distinct))
	t.Logf("%d messages for 47 events", len(all))
}

// CONTRACT: C-32
func TestForbiddenExchangeIsUnavailable(t *testing.T) {
	exchange, queue := newExchange(t, amqp.ExchangeTopic, "#")
	cfg := plainConfig(t, "shop.orders")
	cfg.Exchange, cfg.Auth = exchange, password(t, "", sinktest.PasswordSecret)
	cfg.Auth.UsernameFile = sinktest.File(t, "username", mallory)
	s := open(t, cfg)
	ses, err := s.session(t.Context())
	need.OK(t, err)
	ses.using.Add(1) // by another delivery
	for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(3)) {
		sinktest.Want(t, "an exchange", err, true, reason.AuthenticationFailed, "ACCESS_REFUSED: the dispatcher's user may not write to the exchange")
	}
	need.Want(t, nil, "Probe checks more than a login: %v", s.Probe(t.Context()))
	sinktest.Write(t, cfg.Auth.UsernameFile, alice)
	need.Want(t, nil, "another user is in the file, who may write: %v", sinktest.Send(t, s))
	need.That(t, !ses.ended.Load() && !ses.IsClosed(), "the session ended while another delivery waited for its responses")
	ses.done()
	eventually(t, "the session of the user who may not write has ended", ses.IsClosed)
	control(t, "set_topic_permissions", alice, exchange, "^shop[.]", "^$")
	cfg.Auth, cfg.RoutingKey = password(t, alice, sinktest.PasswordSecret), ""
	s = open(t, cfg)
	batch := sinktest.NewEvents(20)
	for i, e := range batch {
		e.Topic = "shop.orders"
		if i == 7 {
			e.Topic = "bank.orders"
		}
	}
	for i, err := range s.Deliver(t.Context(), batch) {
		if i == 7 {
			sinktest.Outcome(t, "a routing key", err, sinktest.Fault, reason.AuthenticationFailed, "may not write with this routing key; allow it, as with rabbitmqctl set_topic_permissions")
		} else if err != nil {
			t.Errorf("an event next to one with a forbidden key: %v", err)
		}
	}
	n := len(consume(t, queue))
	need.That(t, n >= 20, "%d messages arrived, want 20", n)
}

// A queue that is full takes no more, until there is room.
func TestFullQueueIsAFault(t *testing.T) {
	queue := newQueue(t, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	s := open(t, plainConfig(t, queue))
	var full error
	eventually(t, "the queue is full", func() bool { full = sinktest.Send(t, s); return full != nil })
	sinktest.Outcome(t, "a full queue", full, sinktest.Fault, reason.Refusing, "(basic.nack); a queue is full or has failed: make room in it")
	need.OK(t, need.Err(admin(t).QueuePurge(queue, false)))
	need.Want(t, nil, "there is room: %v", sinktest.Send(t, s))
}

// While the broker has an alarm nothing new is sent, and no event becomes dead.
//
// CONTRACT: C-32
func TestBlockedBrokerGetsNothingNew(t *testing.T) {
	for name, alarm := range map[string]struct{ on, off []string }{
		"low on memory": {[]string{"set_vm_memory_high_watermark", "0.00001"}, []string{"set_vm_memory_high_watermark", "0.4"}},
		"low on disk":   {[]string{"set_disk_free_limit", "1000000GB"}, []string{"set_disk_free_limit", "50MB"}},
	} {
		t.Run(name, func(t *testing.T) {
			queue := newQueue(t, nil)
			cfg := plainConfig(t, queue)
			cfg.Timeout = spec.Duration(2 * time.Second)
			used, fresh := open(t, cfg), open(t, cfg)
			need.OK(t, sinktest.Send(t, used))
			control(t, alarm.on...)
			t.Cleanup(func() { control(t, alarm.off...) })
			for what, s := range map[string]*sink{"used": used, "fresh": fresh} {
				// The broker says so to who publishes. What was sent by then waits, and may be written.
				sent := 0
				eventually(t, "the sink knows of the alarm", func() bool {
					for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(100)) {
						switch {
						case err == nil:
							sent++
						case dispatcher.IsUnavailable(err):
							sinktest.Want(t, what, err, true, reason.Refusing, "has blocked publishers: "+name+"; free some")
						default:
							sinktest.Want(t, what, err, false, reason.Refusing, "has blocked publishers: "+name+"; free some")
							sent++
						}
					}
					return s.live() != nil && s.blocked() != nil
				})
				need.That(t, s != fresh || sent <= 1, "a new connection sent %d messages, want 1", sent)
				for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(100)) {
					sinktest.Want(t, what, err, true, reason.Refusing, "has blocked publishers: "+name+"; free some")
				}
				sinktest.Want(t, what+": Probe", s.Probe(t.Context()), true, reason.Refusing, "has blocked publishers: "+name+"; free some")
			}
			control(t, alarm.off...)
			for _, s := range []*sink{used, fresh} {
				eventually(t, "the alarm is over", func() bool { return s.Probe(t.Context()) == nil })
				need.Want(t, nil, "the alarm is over: %v", sinktest.Send(t, s))
			}
		})
	}
}

// On a new connection one message goes alone: a broker that takes none costs that one an attempt, and the
// others are known not to have been sent.
//
// CONTRACT: C-32
func TestFirstMessageGoesAlone(t *testing.T) {
	cfg := plainConfig(t, newQueue(t, nil))
	cfg.Timeout = spec.Duration(2 * time.Second)
	s := open(t, cfg)
	p, err := s.takePublisher(t.Context())
	if err == nil {
		err = p.ready(t.Context(), s)
	}
	need.OK(t, err)
	s.returnPublisher(p)
	theBroker.Server.Pause()
	t.Cleanup(theBroker.Server.Resume)
	for i, err := range s.Deliver(t.Context(), sinktest.NewEvents(20)) {
		if i == 0 {
			sinktest.Want(t, "the first", err, false, reason.ConnectionFailed, "no confirmation within 2s; check that the broker runs")
		} else {
			sinktest.Want(t, "the others", err, true, reason.ConnectionFailed, "did not confirm the first message on a connection, so no more were sent")
		}
	}
}

// CONTRACT: C-27, C-31, C-32
func TestRabbitSinkSurvivesServerFaults(t *testing.T) {
	sinktest.Faults{
		Server: broker(t),
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			d := destination(t, spec.RabbitMQSink{Access: spec.Access{Timeout: spec.Duration(timeout)}})
			flush(t)
			return d
		},
		Unconfirmed: "no confirmation within %s; check that the broker runs", Unconnected: "no response within %s; check that it runs",
	}.Run(t)
}

// A connection that an operator closed is made again, and a node that is unreachable passed over.
//
// CONTRACT: C-32
func TestClosedConnectionIsOpenedAgain(t *testing.T) {
	queue := newQueue(t, nil)
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	cfg := plainConfig(t, queue)
	cfg.Addresses = []string{unused.Addr().String(), broker(t).Address(rabbitmq.Plain)}
	need.OK(t, unused.Close())
	s := open(t, cfg)
	for range 2 {
		need.OK(t, sinktest.Send(t, s))
		control(t, "close_all_connections", "--vhost", "/", "test")
		eventually(t, "the sink knows", func() bool { return s.live() == nil })
	}
	need.Want(t, nil, "after the connection was closed: %v", sinktest.Send(t, s))
}

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurityFailuresNameTheRemedy(t *testing.T) {
	queue := newQueue(t, nil)
	control(t, "add_vhost", "closed")
	control(t, "add_vhost", "full")
	control(t, "set_permissions", "-p", "full", alice, "^$", ".*", "^$")
	control(t, "set_vhost_limits", "-p", "full", `{"max-connections": 0}`)
	trust, known := certs.Trust(t, certs.CA.PEM), certs.Present(t, certs.Client)
	unknown := certs.Present(t, certs.CA.Sign(t, "stranger", sinktest.InAnHour()))
	good, external := password(t, alice, sinktest.PasswordSecret), &spec.Auth{Type: spec.AuthExternal}
	for _, test := range []struct {
		name, listener string
		auth           *spec.Auth
		tls            *spec.TLS
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
func TestFullNodeLeadsToAnotherNode(t *testing.T) {
	full := &amqp.Error{Code: amqp.NotAllowed, Reason: "NOT_ALLOWED - connection refused: node connection limit (100) is reached", Server: true}
	s := open(t, spec.RabbitMQSink{Addresses: []string{"rabbitmq.example:5672"}, Access: spec.Access{Auth: password(t, alice, sinktest.PasswordSecret)}})
	err := s.Unreachable(t.Context(), full)
	sinktest.Want(t, "a full node", err, true, reason.Refusing, "NOT_ALLOWED: the node has as many connections as it takes; raise its connection_max, or list more nodes in addresses")
	need.That(t, !isLogin(full), "a full node ends the search for a node that takes the connection")
	for _, text := range []string{
		"NOT_ALLOWED - access to vhost 'node connection limit' refused for user 'alice'",
		"NOT_ALLOWED - access to vhost '/' refused for user 'alice': connection limit (100) is reached",
		"NOT_ALLOWED - connection refused for user 'alice': user connection limit (100) is reached",
	} {
		need.That(t, isLogin(&amqp.Error{Code: amqp.NotAllowed, Reason: text, Server: true}), "another node is tried after %s", text)
	}
}

// CONTRACT: C-32
func TestTLSFailuresNameTheRemedy(t *testing.T) {
	queue, at := newQueue(t, nil), theBroker.Server.Address
	sinktest.TLS{
		Certificates: certs, Plain: at(rabbitmq.Plain), Good: at("TLS"), Mutual: at("MUTUAL"), ExpiredAt: at("EXPIRED"), ElsewhereAt: at("ELSEWHERE"),
		Open: func(t *testing.T, address string, cfg *spec.TLS) dispatcher.Sink {
			return openTLS(t, queue, address, cfg)
		},
		Renew: "; renew the broker's certificate", Hosts: "; use hosts in addresses that the certificate names",
		NoTLS: "; no TLS is spoken there", TLSWanted: "TLS",
	}.Run(t)
}

func openTLS(t *testing.T, queue, address string, tls *spec.TLS) dispatcher.Sink {
	cfg := plainConfig(t, queue)
	cfg.Addresses, cfg.TLS = []string{address}, tls
	return open(t, cfg)
}

func TestFilesAreReadForEachConnection(t *testing.T) {
	queue := newQueue(t, nil)
	sinktest.Rotated(t, certs, func(t *testing.T, passwordFile string) dispatcher.Sink {
		cfg := plainConfig(t, queue)
		cfg.Auth.SecretFile = passwordFile
		return open(t, cfg)
	}, func(t *testing.T, cfg *spec.TLS) dispatcher.Sink {
		return openTLS(t, queue, theBroker.Server.Address("MUTUAL"), cfg)
	})
}
