package main

import (
	"context"
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
	const events = `with e (id, type, payload) as (values
		('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b42'::uuid, 'OrderPlaced', '{"total": 10.10, "id": 9007199254740993, "text": "Größe \" \\ \n \u0001"}'::jsonb),
		('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b43', 'OrderPaid', '[]'), ('019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b44', 'OrderPaid', '"text"'))`
	theirs := debeziumRelay("Debezium", tuning)
	theirs.insert = events + ` insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
		select id, $1, 'order-' || type, type, payload from e where $2::text[] is not null`
	err := (&bench{}).withKafka(t.Context(), func(k *kafkaCell) error {
		ours := k.dispatcherRelay("ours", "", map[string]any{"message": map[string]any{"format": "Debezium"}, "sink": map[string]any{
			"kafka":  map[string]any{"brokers": []string{k.broker.Address(kafka.Plain)}},
			"routes": []map[string]any{{"to": "event.aggregateType"}}, // as the router's route.topic.replacement here
		}}, nil)
		ours.insert = events + ` insert into outbox.outbox_events (id, namespace, topic, aggregate_type, aggregate_id, event_type, payload)
			select id, '` + namespace + `', $1, $1, 'order-' || type, type, payload from e where $2::text[] is not null`
		want, err := k.three(t.Context(), theirs)
		if err != nil {
			return err
		}
		got, err := k.three(t.Context(), ours)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the dispatcher's records are %q, and Debezium's %q", got, want)
		}
		return err
	})
	need.Server(t, err, fetch.ErrMissing)
}

// record is what a consumer sees of one.
type record struct {
	Key, Value string
	Headers    []kgo.RecordHeader
}

// three are the records that a relay makes of the three events.
func (k *kafkaCell) three(ctx context.Context, which relay) (all []record, err error) {
	err = k.with(ctx, which, func(r *relayRun) error {
		if err := r.add(ctx); err != nil {
			return err
		}
		return r.read(ctx, func(f *kgo.Record) (bool, error) {
			named := func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "__debezium.context.") }
			all = append(all, record{string(f.Key), string(f.Value), slices.DeleteFunc(f.Headers, named)})
			return len(all) == 3, nil
		})
	})
	return all, err
}
