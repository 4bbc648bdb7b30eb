package sinktest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Opened returns a sink, and closes it when the test ends.
func Opened[S dispatcher.Sink](t testing.TB, s S, err error) S {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Send delivers one new event, and verifies the error.
func Send(t testing.TB, s dispatcher.Sink) error {
	t.Helper()
	return Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{NewEvent()})[0])
}

// Reaches checks that Deliver and Probe succeed or, when there is a word, that the errors of both are
// Unavailable, with the word and the text.
func Reaches(t testing.TB, s dispatcher.Sink, word, text string) {
	t.Helper()
	if word == "" {
		if delivered, probed := sendSoon(t, s), s.Probe(t.Context()); delivered != nil || probed != nil {
			t.Errorf("Deliver: %v, Probe: %v; want no errors", delivered, probed)
		}
		return
	}
	delivered, probed := Send(t, s), s.Probe(t.Context())
	Want(t, "Deliver", delivered, true, word, text)
	Want(t, "Probe", probed, true, word, text)
}

// BenchBatch is a batch for s of events as they are in practice, with 200 bytes of payload.
func BenchBatch(s dispatcher.Sink) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, s.BatchSize())
	for i := range batch {
		e := NewEvent()
		e.AggregateID, e.EventType, e.AggregateType = fmt.Sprintf("order-%d", i), "OrderPlaced", "order"
		e.Payload = []byte(`"` + strings.Repeat("7", 198) + `"`)
		e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
		batch[i] = e
	}
	return batch
}

// Bench has each of the workers deliver b.N batches, and reports the rate, and the CPU time of this process
// without the server's. Each batch has new ids: a destination may know the old ones.
func Bench(b *testing.B, s dispatcher.Sink, workers int) {
	batches := make([][]*dispatcher.Event, workers)
	for i := range batches {
		batches[i] = BenchBatch(s)
	}
	s.Deliver(b.Context(), BenchBatch(s)) // connects
	b.ResetTimer()
	before := cpu(b)
	var wg sync.WaitGroup
	for _, batch := range batches {
		wg.Go(func() {
			for range b.N {
				for _, e := range batch {
					e.ID = uuid.Must(uuid.NewV7())
				}
				for _, err := range s.Deliver(b.Context(), batch) {
					if err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	events := float64(b.N * workers * s.BatchSize())
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/events, "cpu-ns/event")
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
