package kafkasink

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The classes of an outcome.
const (
	failed      = "failed"
	fault       = "destination's fault"
	unavailable = "unavailable"
	dead        = "dead: permanent_failure"
)

func class(err error) string {
	why, permanent := dispatcher.PermanentReason(err)
	switch {
	case err == nil:
		return "delivered"
	case permanent:
		return "dead: " + string(why)
	case dispatcher.IsUnavailable(err):
		return unavailable
	case dispatcher.IsDestinationFault(err):
		return fault
	default:
		return failed
	}
}

// What an operator reads when something is wrong with the real broker, word for word.
//
// CONTRACT: C-32, C-73
func TestBrokerErrorsNameTheRemedy(t *testing.T) {
	topic := newTopic(t, 1)
	trust := &config.TLS{CAFile: sinktest.File(t, "ca.crt", theBroker.certs.CA.PEM)}
	connect := func(t *testing.T, s *sink) {
		if err := sinktest.Send(t, s); err != nil {
			t.Fatal(err)
		}
	}
	pause := func() { theBroker.Pause(); t.Cleanup(theBroker.Resume) }
	for _, test := range []struct {
		name     string
		listener string // Plain when empty
		change   func(*config.KafkaSink)
		before   func(*testing.T, *sink) // the delivery
		after    func()
		event    *dispatcher.Event

		class, word, text string
	}{
		{name: "wrong password", listener: "SASL",
			change: func(c *config.KafkaSink) {
				c.Auth = passwordLogin(t, config.AuthScramSHA512, alice, sinktest.WrongSecret)
			},
			class: unavailable, word: reason.AuthenticationFailed,
			text: "cannot connect to Kafka at {broker}: SASL_AUTHENTICATION_FAILED: SASL Authentication failed.; check auth.type, and the user and password or token in auth's files"},
		{name: "expired certificate", listener: "EXPIRED",
			change: func(c *config.KafkaSink) { c.TLS = trust },
			class:  unavailable, word: reason.CertificateInvalid,
			text: "cannot connect to Kafka at {broker}: unable to dial: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: {time}; renew the broker's certificate, and check the dispatcher's clock"},
		{name: "missing topic",
			change: func(c *config.KafkaSink) { c.Topic = "missing-" + topic },
			class:  unavailable, word: reason.Refusing,
			text: "topic missing-{topic} at {broker}: UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.; create it, as with kafka-topics.sh --create --topic missing-{topic}, or set topic to one that exists"},
		{name: "too large", event: sinktest.Sized(1_100_000),
			class: dead, word: reason.Refusing,
			text: "permanent_failure: topic {topic} at {broker}: the message is too large: about 1100415 bytes; raise maxMessageBytes and the topic's max.message.bytes, or make smaller events"},
		{name: "slow, and the record was sent",
			before: func(t *testing.T, s *sink) { connect(t, s); pause() }, after: func() { theBroker.Resume() },
			class: fault, word: reason.ConnectionFailed,
			text: "topic {topic} at {broker}: no confirmation within 2s; check that the brokers run and that its partitions have enough in-sync replicas, or raise timeout. The record may have been written"},
		{name: "slow, and nothing was sent",
			before: func(*testing.T, *sink) { pause() }, after: func() { theBroker.Resume() },
			class: unavailable, word: reason.ConnectionFailed,
			text: "cannot connect to Kafka at {broker}: no response within 2s; check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"},
		{name: "gone",
			before: func(t *testing.T, _ *sink) { sinktest.Kill(t, theBroker.Broker) },
			class:  unavailable, word: reason.ConnectionFailed,
			text: "cannot connect to Kafka at {broker}: unable to dial: dial tcp {broker}: connect: connection refused; check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := plainConfig(t, topic)
			cfg.Timeout = config.Duration(2 * time.Second)
			if test.listener != "" {
				cfg.Brokers = []string{theBroker.Address(test.listener)}
			}
			if test.change != nil {
				test.change(&cfg)
			}
			s := open(t, cfg)
			if test.before != nil {
				test.before(t, s)
			}
			e := test.event
			if e == nil {
				e = sinktest.NewEvent()
			}
			err := sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
			if test.after != nil {
				test.after()
			}
			compare(t, err, test.class, test.word, strings.NewReplacer("{broker}", cfg.Brokers[0], "{topic}", topic).Replace(test.text))
		})
	}
}

// compare checks an outcome; {time} stands for any time.
func compare(t *testing.T, err error, kind, word, text string) {
	t.Helper()
	if class(err) != kind || reason.Of(err) != word {
		t.Errorf("the outcome is %s, %s; want %s, %s: %v", class(err), reason.Of(err), kind, word, err)
		return
	}
	front, back, _ := strings.Cut(text, "{time}")
	if got := err.Error(); !strings.HasPrefix(got, front) || !strings.HasSuffix(got, back) {
		t.Errorf("the error says\n\t%s\nwant\n\t%s", got, text)
	}
}

// A broker whose only disk is full ends. Nothing that it confirmed is lost, and when there is room again
// it takes the rest.
//
// CONTRACT: C-32
func TestFullDiskLosesNothingConfirmed(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	b, err := kafka.Start(t.Context(), kafka.Options{ShortLived: true, Settings: map[string]string{"log.dirs": filepath.Join(disk, "data")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(kafka.Plain)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	s := open(t, config.KafkaSink{Brokers: []string{b.Address(kafka.Plain)}, Topic: "orders", Compression: config.CompressionNone, Access: config.Access{Timeout: config.Duration(3 * time.Second)}})
	deliver := func() error {
		return sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{sinktest.Sized(900_000)})[0])
	}
	confirmed := int64(0)
	for err = deliver(); err == nil && confirmed < 100; err = deliver() {
		confirmed++
	}
	sinktest.Want(t, "the first that finds no room", err, false, reason.ConnectionFailed, "no confirmation within 3s; check that the brokers run")
	sinktest.Want(t, "the next", deliver(), true, reason.ConnectionFailed, "connection refused; check that it runs")

	mount(t, "-o", "remount,size=256m", disk)
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := deliver(); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	ends, err := admin.ListEndOffsets(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if end, _ := ends.Lookup("orders", 0); end.Offset < confirmed+1 {
		t.Errorf("%d records are there, and %d were confirmed", end.Offset, confirmed+1)
	}
}

func mount(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		need.Missing(t, fmt.Errorf("a small disk takes the right to mount one, which root has outside of most containers: %w: %s", err, out))
	}
}
