package main

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The benchmark starts its own program as worker processes: here, that is the test.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == workerFlag {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every system starts in every cell, and delivers what was inserted, once.
func TestQuickRunDeliversInEveryCell(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	o, err := parse([]string{"-quick", "-out", t.TempDir()})
	need.OK(t, err)
	b, err := run(t.Context(), o)
	need.OK(t, err)
	measured := strings.Join(b.notes, "\n") // without Java the cell kafka is left out
	for _, r := range b.rows {
		measured += "The cell " + r.cell + " has " + r.system
		need.That(t, len(r.runs) == 1, "%s, %s, %s has %d runs", r.cell, r.system, r.which, len(r.runs))
	}
	for _, c := range cells {
		need.That(t, strings.Contains(measured, "The cell "+c.name), "cell %s has no row", c.name)
	}
}

func TestMatchFailsForLostAndDoubledEvents(t *testing.T) {
	committed := []time.Time{time.Unix(0, 1), time.Unix(1, 0), time.Unix(2, 0)}
	waits, err := match(committed, report{Handled: 3, Stamps: []int64{9e9, 9e9, 2_005_000_000}}, 2)
	need.That(t, err == nil && len(waits) == 1 && waits[0] == 5, "got %v, %v", waits, err)
	for name, r := range map[string]report{
		"lost":            {Handled: 2, Stamps: []int64{1, 1, 0}},
		"delivered twice": {Handled: 4, Stamps: []int64{1, 1, 1}},
	} {
		if _, err := match(committed, r, 0); err == nil {
			t.Errorf("an event was %s, and nothing is wrong", name)
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	m := measure{}
	m.waits([]float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1})
	need.That(t, m[p50] == 5 && m[p95] == 10 && m[p99] == 10 && m[longest] == 10, "got %v", m)
}

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
		need.That(t, reflect.DeepEqual(got, want), "the dispatcher's records are %q, and Debezium's %q", got, want)
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
