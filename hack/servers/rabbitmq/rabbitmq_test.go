package rabbitmq_test

import (
	"context"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What was confirmed is there after kill -9, at the same address.
func TestKillAndRestart(t *testing.T) {
	b, err := rabbitmq.Start(t.Context(), rabbitmq.Options{})
	need.Server(t, err, rabbitmq.ErrMissing)
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	address := b.Address(rabbitmq.Plain)
	channel := open(t, b)
	if _, err := channel.QueueDeclare("kept", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmation, err := channel.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("one")})
	if err != nil || !confirmation.Wait() {
		t.Fatalf("not confirmed: %v", err)
	}
	// A declaration is confirmed before Mnesia's log has it for sure.
	if out, err := b.Control(t.Context(), "-q", "eval", "mnesia:sync_log()."); err != nil {
		t.Fatalf("rabbitmqctl: %q, %v", out, err)
	}
	b.Kill()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if message, ok, err := open(t, b).Get("kept", true); !ok || err != nil || string(message.Body) != "one" {
		t.Errorf("after a restart the queue has %q, %v, %v", message.Body, ok, err)
	}
	if b.Address(rabbitmq.Plain) != address {
		t.Errorf("the address changed from %s to %s", address, b.Address(rabbitmq.Plain))
	}
	if out, err := b.Control(t.Context(), "-q", "list_queues", "--no-table-headers", "name", "messages_ready"); err != nil {
		t.Errorf("rabbitmqctl: %q, %v", out, err)
	}
}

func open(t *testing.T, b *rabbitmq.Broker) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // broken, if the broker was killed
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}
