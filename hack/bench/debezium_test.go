package main

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Consumers of Debezium's outbox event router get the same records from a dispatcher with message.format Debezium: the same
// key, value and headers, but for those that name the connector.
//
// CONTRACT: C-70
func TestRecordsAreThoseOfDebezium(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Kafka Connect")
	}
	jars, err := fetch.Java(t.Context(), debeziumJars)
	need.Server(t, err, fetch.ErrMissing)
	logical := maps.Clone(settings)
	logical["wal_level"] = "logical"
	srv, err := startServer(t.Context(), logical)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.close()
	const events = `with e (id, type, payload) as (values
		('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b42'::uuid, 'OrderPlaced', '{"total": 10.10, "id": 9007199254740993, "text": "Größe \" \\ \n \u0001"}'::jsonb),
		('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b43', 'OrderPaid', '[]'), ('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b44', 'OrderPaid', '"text"'))`
	theirs := debeziumRelay(debeziumTuned, jars, tuned())
	theirs.insert = events + ` insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
		select id, $1, 'order-' || type, type, payload from e where $2::text[] is not null`
	b := &bench{}
	b.beforeKafka(t.Context(), "records", srv, func(k *kafkaCell) {
		ours := dispatcherRelay(k.builds[0], map[string]any{"message": map[string]any{"format": "Debezium"}, "sink": map[string]any{
			"kafka":  map[string]any{"brokers": []string{k.broker.Address(kafka.Plain)}},
			"routes": []map[string]any{{"to": "event.aggregateType"}}, // as the router's route.topic.replacement here
		}})
		ours.insert = events + ` insert into outbox.outbox_events (id, namespace, topic, aggregate_type, aggregate_id, event_type, payload)
			select id, '` + namespace + `', $1, $1, 'order-' || type, type, payload from e where $2::text[] is not null`
		want, got := k.records(t, theirs), k.records(t, ours)
		if len(want) != 3 || !reflect.DeepEqual(got, want) {
			t.Errorf("the dispatcher's records are %q, and Debezium's %q", got, want)
		}
	})
	for _, row := range b.results.Rows {
		t.Errorf("%s: %s", row.System, row.Failed)
	}
}

// record is what a consumer sees of one.
type record struct {
	Key, Value string
	Headers    []kgo.RecordHeader
}

// records are those that a relay makes of the three events.
func (k *kafkaCell) records(t *testing.T, which relay) (all []record) {
	t.Helper()
	err := k.with(t.Context(), which, func(r *kafkaRun) error {
		if err := r.add(t.Context()); err != nil {
			return err
		}
		if err := r.await(t.Context(), 3); err != nil {
			return err
		}
		found, _, err := r.consume(context.WithoutCancel(t.Context()), 0)
		for _, f := range found {
			named := func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "__debezium.context.") }
			all = append(all, record{string(f.Key), string(f.Value), slices.DeleteFunc(f.Headers, named)})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
