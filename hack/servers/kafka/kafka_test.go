package kafka_test

import (
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What was confirmed is there after kill -9 and after a restart, at the same address.
func TestKillAndRestart(t *testing.T) {
	b, err := kafka.Start(t.Context(), kafka.Options{
		Listeners: []kafka.Listener{{Name: "SASL", Protocol: "SASL_PLAINTEXT"}},
		Users:     map[string]string{"alice": "wonderland"},
	})
	need.Server(t, err, kafka.ErrMissing)
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	address := b.Address(kafka.Plain)
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic("kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), kgo.StringRecord("one")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.Kill()
	for range 2 { // the first starts it, the second restarts it
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		offsets, err := admin.ListEndOffsets(t.Context(), "kept")
		if err != nil || offsets.Error() != nil {
			t.Fatal(err, offsets.Error())
		}
		if o, ok := offsets.Lookup("kept", 0); !ok || o.Offset != 1 {
			t.Errorf("the topic ends at %d after a restart, want 1", o.Offset)
		}
	}
	if b.Address(kafka.Plain) != address {
		t.Errorf("the address changed from %s to %s", address, b.Address(kafka.Plain))
	}
	out, err := b.Tool(t.Context(), "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", address, "--topic", "kept").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "kept:0:1" {
		t.Errorf("Kafka's own tool says %q, %v", out, err)
	}
}
