// Package sinktest says what a [dispatcher.Sink] must do, as tests: every sink runs [Exercise]
// against a real destination. It also has sinks made for testing the engine.
package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Exercise tests the sink that open returns; it calls open for each sub-test, with its own t.
func Exercise(t *testing.T, open func(t *testing.T) Destination) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Destination)
	}{
		{"Results", exerciseResults},
		{"Attributes", exerciseAttributes},
		{"Awkward", exerciseAwkward},
		{"Concurrent", exerciseConcurrent},
		{"Refused", exerciseRefused},
		{"Cancelled", exerciseCancelled},
		{"Hanging", exerciseHanging},
		{"Unreachable", exerciseUnreachable},
		{"Idle", exerciseIdle},
		{"Missing", exerciseMissing},
		{"Probe", exerciseProbe},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := open(t)
			test.run(t, d)
			if err := d.Sink.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// Every batch up to BatchSize has a result for each event, in order, and arrives once, unchanged.
func exerciseResults(t *testing.T, d Destination) {
	size := d.Sink.BatchSize()
	if size < 1 {
		t.Fatalf("BatchSize is %d; it must be at least 1", size)
	}
	var sent []*dispatcher.Event
	for n := range min(size, 3) {
		batch := events(n + 1)
		var before []dispatcher.Event
		for _, e := range batch {
			copied := *e
			copied.Headers = maps.Clone(e.Headers)
			copied.Payload = slices.Clone(e.Payload)
			before = append(before, copied)
		}
		delivered(t, d, batch)
		for i, e := range batch {
			if !reflect.DeepEqual(*e, before[i]) {
				t.Errorf("Deliver changed the event %+v", before[i])
			}
		}
		sent = append(sent, batch...)
	}
	batch := events(size)
	delivered(t, d, batch)
	arrivedOnce(t, d, append(sent, batch...))
	if d.Sink.BatchSize() != size {
		t.Errorf("BatchSize changed from %d to %d", size, d.Sink.BatchSize())
	}
}

// The attributes of an event arrive with it (CONTRACT C-70, C-71).
func exerciseAttributes(t *testing.T, d Destination) {
	whole, bare := wholeEvent(), bareEvent()
	delivered(t, d, []*dispatcher.Event{whole})
	delivered(t, d, []*dispatcher.Event{bare})
	got := map[string]Message{}
	for _, m := range d.Arrived() {
		got[m.Attributes["id"]] = m
	}
	for event, want := range map[*dispatcher.Event]map[string]string{whole: wholeAttributes, bare: bareAttributes} {
		m, ok := got[event.ID.String()]
		if !ok {
			t.Errorf("event %s did not arrive", event.ID)
			continue
		}
		for name, value := range want {
			if m.Attributes[name] != value {
				t.Errorf("event %s: attribute %s is %q, want %q", event.ID, name, m.Attributes[name], value)
			}
		}
		for name, value := range m.Attributes {
			if _, ok := want[name]; !ok {
				t.Errorf("event %s: unexpected attribute %s = %q", event.ID, name, value)
			}
		}
		if m.Payload != string(event.Payload) && !d.NoPayload {
			t.Errorf("event %s: the payload arrived as %s", event.ID, m.Payload)
		}
	}
}

// Deliver is called from many goroutines.
func exerciseConcurrent(t *testing.T, d Destination) {
	const workers, rounds = 8, 5
	sent := make([][]*dispatcher.Event, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range rounds {
				batch := events(min(d.Sink.BatchSize(), 3))
				delivered(t, d, batch)
				sent[w] = append(sent[w], batch...)
			}
		})
	}
	wg.Wait()
	arrivedOnce(t, d, slices.Concat(sent...))
}

// A refused event is its own failure, with an error that holds no payload, and the destination's code as its
// cause (CONTRACT C-32, C-41, C-73).
func exerciseRefused(t *testing.T, d Destination) {
	if d.lacks(t, "Refuse", d.Refuse) {
		return
	}
	batch := events(3)
	if dispatcher.KeepsOrder(d.Sink) && d.Sink.BatchSize() >= len(batch) {
		batch[2].PartitionKey, batch[2].Behind = batch[1].Key(), true
	}
	d.Refuse(batch[1].ID)
	var arrived []*dispatcher.Event
	for chunk := range slices.Chunk(batch, min(d.Sink.BatchSize(), len(batch))) {
		errs := deliver(t, t.Context(), d, chunk)
		for i, e := range chunk {
			refused := e == batch[1]
			switch {
			case refused && errs[i] == nil:
				t.Errorf("a refused event got nil")
			case refused && dispatcher.IsUnavailable(errs[i]):
				t.Errorf("a refused event is its own failure, but the error is Unavailable: %v", errs[i])
			case e.Behind && errs[i] == nil:
				t.Errorf("an event behind a refused one of its key got nil, and the sink says that it keeps the order")
			case e.Behind:
			case !refused && errs[i] != nil:
				t.Errorf("an event next to a refused one failed: %v", errs[i])
			case !refused:
				arrived = append(arrived, e)
			}
			if cause := dispatcher.CauseOf(errs[i]); refused && errs[i] != nil && cause != d.Refused {
				t.Errorf("the cause of a refused event is %+v, want %+v: %v", cause, d.Refused, errs[i])
			}
			noPayload(t, errs[i])
		}
	}
	after := events(1)
	delivered(t, d, after)
	arrivedOnce(t, d, append(arrived, after...))
}

// After ctx's end nothing is published.
func exerciseCancelled(t *testing.T, d Destination) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range deliver(t, ctx, d, events(min(d.Sink.BatchSize(), 3))) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the context was cancelled before Deliver, and the error is %v, which does not wrap it", err)
		}
		d.caused(t, err)
	}
	arrivedOnce(t, d, nil)
}

// Deliver returns soon after ctx's end, though the destination is silent.
func exerciseHanging(t *testing.T, d Destination) {
	if d.lacks(t, "Hang", d.Hang) {
		return
	}
	waiting := d.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	batch := events(min(d.Sink.BatchSize(), 3))
	result := make(chan []error, 1)
	go func() { result <- d.Sink.Deliver(ctx, batch) }()
	within(t, waiting, "the destination got no request")
	cancel()
	errs := within(t, result, "Deliver did not return after its context was cancelled")
	if len(errs) != len(batch) {
		t.Fatalf("Deliver responded %d errors for %d events", len(errs), len(batch))
	}
	for _, err := range errs {
		switch {
		case !errors.Is(err, context.Canceled):
			t.Errorf("the context was cancelled during Deliver, and the error is %v, which does not wrap it", err)
		case dispatcher.IsUnavailable(err):
			t.Errorf("the event may have been received, but the error is Unavailable: %v", err)
		}
	}
}

// An unreachable destination is not a refused event, and is found again (CONTRACT C-32).
func exerciseUnreachable(t *testing.T, d Destination) {
	if d.lacks(t, "Stop", d.Stop) {
		return
	}
	before := events(1)
	delivered(t, d, before)
	d.Stop()
	// A connection that is killed under an event may have carried it, so the first errors may differ.
	eventually(t, "Deliver to a stopped destination is Unavailable", func() error {
		err := deliver(t, t.Context(), d, events(1))[0]
		noPayload(t, err)
		d.caused(t, err)
		if err == nil {
			t.Fatal("an event got nil while the destination was stopped")
		}
		if !dispatcher.IsUnavailable(err) {
			return fmt.Errorf("the error is not Unavailable: %w", err)
		}
		return nil
	})
	if err := d.Sink.Probe(t.Context()); !dispatcher.IsUnavailable(err) {
		t.Errorf("Probe of a stopped destination returned %v; want an error that is Unavailable", err)
	}
	d.Start()
	eventually(t, "Probe finds the destination again", func() error { return d.Sink.Probe(t.Context()) })
	after := events(1)
	delivered(t, d, after)
	arrivedOnce(t, d, append(before, after...))
}

// Connections that the destination closed while no delivery used them cost no event an attempt (CONTRACT C-32).
func exerciseIdle(t *testing.T, d Destination) {
	if d.lacks(t, "Idle", d.Idle) {
		return
	}
	const workers = 4 // each with a connection, if the sink has several
	sent := make([][]*dispatcher.Event, workers)
	for range 3 {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				batch := events(1)
				delivered(t, d, batch)
				sent[w] = append(sent[w], batch...)
			})
		}
		wg.Wait()
		d.Idle()
	}
	after := events(1)
	delivered(t, d, after)
	arrivedOnce(t, d, append(slices.Concat(sent...), after...))
}

// While the configured place is missing, or closed to the sink, Probe says so, and no event spends an
// attempt (CONTRACT C-32).
func exerciseMissing(t *testing.T, d Destination) {
	if d.lacks(t, "Missing", d.Missing) {
		return
	}
	restore := d.Missing()
	want := func(what string, err error) {
		t.Helper()
		if !dispatcher.IsUnavailable(err) || !strings.Contains(err.Error(), d.Remedy) {
			t.Errorf("%s, and the configured place is missing: %v; want an error that is Unavailable and says %q", what, err, d.Remedy)
		}
	}
	want("Probe", d.Sink.Probe(t.Context()))
	for _, err := range deliver(t, t.Context(), d, events(min(d.Sink.BatchSize(), 3))) {
		want("Deliver", err)
		d.caused(t, err)
		noPayload(t, err)
	}
	restore()
	eventually(t, "Probe finds the place again", func() error { return d.Sink.Probe(t.Context()) })
	after := events(1)
	eventually(t, "Deliver finds the place again", func() error { return deliver(t, t.Context(), d, after)[0] })
	arrivedOnce(t, d, after)
}

// Probe publishes nothing, and can be repeated.
func exerciseProbe(t *testing.T, d Destination) {
	for range 3 {
		if err := d.Sink.Probe(t.Context()); err != nil {
			t.Errorf("Probe of a destination that is there: %v", err)
		}
	}
	arrivedOnce(t, d, nil)
}
