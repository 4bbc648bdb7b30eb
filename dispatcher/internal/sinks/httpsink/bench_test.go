package httpsink

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// BenchmarkDeliver posts 200-byte events from 16 goroutines to a server in this process that reads
// and forgets them: go test -run=- -bench=Deliver -cpu=16 ./dispatcher/internal/sinks/httpsink
func BenchmarkDeliver(b *testing.B) {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close() })
	e := benchEvent()
	for _, mode := range []config.ContentMode{config.Binary, config.Structured, config.Batch} {
		b.Run(string(mode), func(b *testing.B) {
			s, err := New(config.HTTPSink{URL: "http://" + listener.Addr().String(), Access: config.Access{ContentMode: mode}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			batch := make([]*dispatcher.Event, s.BatchSize())
			for i := range batch {
				batch[i] = e
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := s.Deliver(b.Context(), batch)[0]; err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	e := benchEvent()
	s, err := build(config.HTTPSink{URL: "http://127.0.0.1"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := s.request(b.Context(), s.base, []*dispatcher.Event{e}, credentials{}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchEvent() *dispatcher.Event {
	payload := make([]byte, 200)
	for i := range payload {
		payload[i] = '7'
	}
	return &dispatcher.Event{
		ID: uuid.New(), Seq: 42, Namespace: "shop", Topic: "orders", DedupeKey: "order-7", EventType: "OrderPlaced",
		AggregateType: "order", AggregateID: "order-7", Attempt: 1, CreatedAt: time.Now(), Payload: payload,
		Headers: map[string]string{"correlation_id": "c-42", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}
}
