package cloudsink

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// CONTRACT: C-32, C-73
func TestServiceBusResponses(t *testing.T) {
	address := busServer.get(t).Address
	for _, k := range []token{"wrong-" + credentialSecret, "expired-" + credentialSecret} {
		s := newServiceBusSink(t, address, newName(""), "", k)
		verify(t, string(k), deliver(t, s, newEvent()), unavailable, reason.AuthenticationFailed, "Azure Service Bus Data Sender")
		verify(t, string(k), s.Probe(t.Context()), unavailable, reason.AuthenticationFailed, "Azure Service Bus Data Sender")
	}
	full := newServiceBusSink(t, address, "full-"+newName(""), "", "good")
	verify(t, "full", deliver(t, full, newEvent()), fault, reason.Refusing, "responded amqp:resource-limit-exceeded; it is full")
	missing := newServiceBusSink(t, address, "missing-"+newName(""), "", "good")
	verify(t, "missing, Probe", missing.Probe(t.Context()), unavailable, reason.Refusing, "create it")
	// An identity that may send to its queues only is refused everywhere else, and events go to the queues of their topics.
	for _, k := range []token{"good", "own-queues"} {
		s := newServiceBusSink(t, address, "", "", k)
		if err := s.Probe(t.Context()); err != nil {
			t.Errorf("%s, Probe without a queue or topic: %v", k, err)
		}
		if err := deliver(t, s, newEvent()); err != nil {
			t.Errorf("%s, to the queue of the event's topic: %v", k, err)
		}
	}
}

// The SDK hides what the service responded in a text. It is read there, and it costs the other deliveries nothing: the
// connection is theirs too.
//
// CONTRACT: C-32, C-33
func TestServiceBusRefusalsKeepTheConnection(t *testing.T) {
	address := busServer.get(t).Address
	for queue, want := range map[string]struct {
		is         class
		word, text string
		again      bool // the next event is taken, by another link
	}{
		"broken-":  {fault, reason.Refusing, "responded amqp:internal-error; the service has trouble", false},
		"invalid-": {failed, reason.Refusing, "responded com.microsoft:argument-error; ", false},
		"revoked-": {unavailable, reason.AuthenticationFailed, "responded amqp:unauthorized-access; give the dispatcher's identity the role", true},
	} {
		s := newServiceBusSink(t, address, queue+newName(""), "", "good")
		service := s.service.(*serviceBusService)
		if err := s.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		client := service.client // the deliveries use the connection of the probe
		verify(t, queue, deliver(t, s, newEvent()), want.is, want.word, want.text)
		if err := deliver(t, s, newEvent()); (err == nil) != want.again {
			t.Errorf("%s: the next event: %v", queue, err)
		}
		if service.client != client {
			t.Errorf("%s: the connection was given up", queue)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	lost := newServiceBusSink(t, address, "lost-"+newName(""), "", "good")
	verify(t, "the connection ends", deliver(t, lost, newEvent()), failed, reason.ConnectionFailed, "broke off, or gave no valid response")
}
