package kafkasink

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// CONTRACT: C-29, C-32
func TestMissingTopic(t *testing.T) {
	topic := newTopic(t, 1)
	if _, err := theBroker.admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	s := open(t, plainConfig(t, topic))
	sinktest.Reaches(t, s, reason.Refusing, "; create it, as with kafka-topics.sh --create --topic "+topic)
	// Probe does not check the topics of events: one that is missing does not pause the others.
	several := open(t, plainConfig(t, ""))
	missing := sinktest.NewEvent()
	missing.Topic = topic
	err := several.Deliver(t.Context(), []*dispatcher.Event{missing})[0]
	sinktest.Want(t, "Deliver to the event's own topic", err, false, reason.Refusing, "; create it")
	sinktest.Fault(t, "Deliver to the event's own topic", err, true)
	if err := several.Probe(t.Context()); err != nil {
		t.Errorf("Probe checks the brokers alone: %v", err)
	}
	if _, err := theBroker.admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	if err := sinktest.Send(t, s); err != nil {
		t.Errorf("the topic was created, and Deliver fails: %v", err)
	}

	e := sinktest.NewEvent()
	e.Topic = "shop/orders"
	good := sinktest.NewEvent()
	good.Topic = topic
	s = open(t, plainConfig(t, ""))
	for _, batch := range [][]*dispatcher.Event{{e}, {e, good}} {
		for i, err := range s.Deliver(t.Context(), batch) {
			if i == 0 {
				sinktest.Want(t, "a name that Kafka does not take", err, false, reason.Refusing, "; set topic to one of A-Z")
			} else if err != nil {
				t.Errorf("an event next to one with a bad topic: %v", err)
			}
		}
	}
}

// An event that is too large is dead. Those that were in a batch with it are not.
//
// CONTRACT: C-32, C-73
func TestTooLarge(t *testing.T) {
	for name, test := range map[string]struct {
		topicLimit string
		ours       int
	}{
		"for the sink's limit":         {"1048588", 20_000},
		"for the topic's limit":        {"20000", 1_000_000},
		"with others, for the topic's": {"3000", 1_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			topic := newTopic(t, 1, "max.message.bytes="+test.topicLimit)
			cfg := plainConfig(t, topic)
			cfg.MaxMessageBytes, cfg.Compression = test.ours, config.CompressionNone
			s := open(t, cfg)
			batch := make([]*dispatcher.Event, 50)
			for i := range batch {
				batch[i] = sinktest.Sized(100)
			}
			batch[20] = sinktest.Sized(50_000)
			for i, err := range s.Deliver(t.Context(), batch) {
				if i != 20 {
					if err != nil {
						t.Errorf("event %d, of 100 bytes: %v", i, err)
					}
					continue
				}
				sinktest.Dead(t, "the large event", err, "; raise maxMessageBytes and the topic's max.message.bytes")
			}
			if n := len(consume(t, topic)); n != 49 {
				t.Errorf("%d records arrived, want 49", n)
			}
		})
	}
}

// CONTRACT: C-32
func TestNotAuthorized(t *testing.T) {
	topic := newTopic(t, 1)
	cfg := plainConfig(t, topic)
	cfg.Brokers = []string{broker(t).Address("SASL")}
	cfg.Auth = passwordLogin(t, config.AuthScramSHA256, mallory, sinktest.PasswordSecret)
	acl := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite)
	if created, err := theBroker.admin.CreateACLs(t.Context(), acl.Deny("User:"+mallory).DenyHosts().Allow("User:"+alice).AllowHosts()); err != nil || created[0].Err != nil {
		t.Fatal(err, created)
	}
	// It may describe the topic, and the broker says that it may not write it.
	cfg.Auth.Username, cfg.Auth.UsernameFile = "", sinktest.File(t, "username", mallory)
	s := open(t, cfg)
	sinktest.Reaches(t, s, reason.AuthenticationFailed, "; allow the dispatcher's user to Describe and Write it, as with kafka-acls.sh")
	sinktest.Write(t, cfg.Auth.UsernameFile, alice)
	if err := sinktest.Send(t, s); err != nil {
		t.Errorf("another user is in the file, who may: %v", err)
	}
}

// CONTRACT: C-27, C-31, C-32
func TestKafkaSinkSurvivesServerFaults(t *testing.T) {
	sinktest.Faults{
		Server: broker(t),
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			return destination(t, config.KafkaSink{Access: config.Access{Timeout: config.Duration(timeout)}})
		},
		Unconfirmed: "no confirmation within %s; check that the brokers run", Unconnected: "no response within %s; check that it runs",
	}.Run(t)
}

// The outage is over before the timeout: the record is confirmed, and there once.
func TestRestartDuringDelivery(t *testing.T) {
	topic := newTopic(t, 1)
	cfg := plainConfig(t, topic)
	cfg.Timeout = config.Duration(2 * time.Minute)
	s := open(t, cfg)
	if err := sinktest.Send(t, s); err != nil {
		t.Fatal(err)
	}
	restart := sinktest.Kill(t, theBroker.Broker)
	result := make(chan error)
	go func() { result <- s.Deliver(t.Context(), sinktest.NewEvents(1))[0] }()
	restart()
	if err := <-result; err != nil && !dispatcher.IsUnavailable(err) {
		t.Errorf("the broker came back, and the delivery failed: %v", err)
	} else if n, confirmed := len(consume(t, topic)), err == nil; confirmed != (n == 2) {
		t.Errorf("%d records arrived, and the second delivery ended with %v", n, err)
	}
}
