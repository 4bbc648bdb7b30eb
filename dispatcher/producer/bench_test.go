package producer_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// One transaction, 200-byte payloads, one connection over TCP on this machine.
func BenchmarkEnqueue(b *testing.B) {
	ctx := b.Context()
	pool := pgtest.Open(b, pgtest.Migrated(b))
	outbox := producer.New(producer.Options{})
	e := event(func(e *producer.Event) {
		e.AggregateID, e.Payload = "42", json.RawMessage(`{"text": "`+strings.Repeat("x", 188)+`"}`)
	})
	for _, size := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("batch of %d", size), func(b *testing.B) {
			tx, err := pool.Begin(ctx)
			check(b, err)
			defer tx.Rollback(ctx)
			events := make([]producer.Event, size)
			for i := range events {
				events[i] = e
			}
			for b.Loop() {
				_, err := outbox.EnqueueBatch(ctx, tx, events)
				check(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "µs/event")
		})
	}
}
