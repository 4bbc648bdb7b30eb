package sinktest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
)

// Destination is a sink and the real thing at its other end, as Exercise drives them.
type Destination struct {
	// Sink publishes to the destination. Exercise closes it.
	Sink dispatcher.Sink
	// Arrived returns everything that the destination took, in any order.
	Arrived func() []Message
	// Refuse makes the destination refuse one event.
	Refuse func(id uuid.UUID)
	// Refused is the cause of such a refusal: the sink's class, which all its failures have, and the
	// destination's own code.
	Refused dispatcher.Cause
	// NoPayload says that this sink does not publish payloads.
	NoPayload bool
	// Hang makes the destination take requests and never respond, until the test ends. It returns
	// a channel that gets a value for each request that waits.
	Hang func() (waiting <-chan struct{})
	// Stop makes the destination unreachable, Start brings it back at the same address.
	Stop, Start func()
	// Idle closes the connections that no delivery uses, at the destination's end, and returns when the sink
	// can know of it.
	Idle func()
	// Missing removes the place that the sink is configured for (a topic, a stream, a table), or the
	// right to write there. restore gives it back.
	Missing func() (restore func())
	// Remedy is a part of the errors while it is missing.
	Remedy string
	// Cannot says by their names why hooks are nil: Refuse, Hang, Stop, Idle or Missing. One that is nil
	// and not named here is an error. Large says why a payload of 900 KB is more than the destination takes.
	Cannot map[string]string
}

// lacks reports whether the destination has no hook of this name.
func (d Destination) lacks(t *testing.T, name string, hook any) bool {
	t.Helper()
	why, named := d.Cannot[name]
	switch missing := reflect.ValueOf(hook).IsNil(); {
	case missing && !named:
		t.Fatalf("the destination has no hook %s; set it, or say in Cannot why there is none", name)
	case !missing && named:
		t.Fatalf("the destination has a hook %s, and Cannot says that there is none: %s", name, why)
	case named:
		t.Logf("no %s: %s", name, why)
	}
	return named
}

// Message is an event as it arrived.
type Message struct {
	// Attributes are named as package cloudevent names them, in their canonical text form.
	Attributes map[string]string
	// Payload is the data as text.
	Payload string
}

// MessageOf reads a message that the CloudEvents SDK understands: a binding.Message of any
// protocol, or an event by binding.ToMessage.
func MessageOf(t *testing.T, m binding.Message) Message {
	t.Helper()
	e, err := binding.ToEvent(t.Context(), m)
	if err != nil {
		t.Fatalf("what arrived is not a CloudEvent: %v", err)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("what arrived is not a valid CloudEvent: %v", err)
	}
	got := Message{Attributes: map[string]string{}, Payload: string(e.Data())}
	if err := cloudevent.Attributes(*e, func(name, value string) { got.Attributes[name] = value }); err != nil {
		t.Fatalf("what arrived has an attribute that is not a text: %v", err)
	}
	return got
}

// Divert is Destination.Refuse for a sink whose route can be changed: the chosen events go to another place.
func Divert(route *func(*dispatcher.Event) (string, error), other string) (refuse func(uuid.UUID)) {
	chosen, inner := map[uuid.UUID]bool{}, *route
	*route = func(e *dispatcher.Event) (string, error) {
		if chosen[e.ID] {
			return other, nil
		}
		return inner(e)
	}
	return func(id uuid.UUID) { chosen[id] = true }
}

// Messages reads what a destination has.
func Messages[M any](t *testing.T, all []M, read func(*testing.T, M) Message) (got []Message) {
	for _, m := range all {
		got = append(got, read(t, m))
	}
	return got
}

// Func is a sink from functions. The zero value confirms everything, one event per Deliver.
type Func struct {
	// Respond returns the result of one event. It may wait. nil confirms every event.
	Respond func(ctx context.Context, e *dispatcher.Event) error
	// RespondAll, when set, returns the results of a batch, and Respond is not called.
	RespondAll func(ctx context.Context, batch []*dispatcher.Event) []error
	// Check is the Probe. nil succeeds.
	Check func(ctx context.Context) error
	// Max is the BatchSize. Defaults to 1.
	Max int
	// Confirmed, when set, remembers the events whose result is nil.
	Confirmed *Recording
}

var _ dispatcher.Sink = (*Func)(nil)

// Deliver returns what the functions return.
func (f *Func) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	switch {
	case f.RespondAll != nil:
		errs = f.RespondAll(ctx, batch)
	case f.Respond != nil:
		errs = make([]error, len(batch))
		for i, e := range batch {
			errs[i] = f.Respond(ctx, e)
		}
	default:
		errs = make([]error, len(batch))
	}
	if f.Confirmed != nil {
		for i, e := range batch {
			if errs[i] == nil {
				f.Confirmed.remember(e)
			}
		}
	}
	return errs
}

// Probe returns what Check returns. It fails when Check does.
func (f *Func) Probe(ctx context.Context) error {
	if f.Check == nil {
		return nil
	}
	return f.Check(ctx)
}

// BatchSize is Max.
func (f *Func) BatchSize() int { return max(f.Max, 1) }

// Close does nothing. It never fails.
func (*Func) Close(context.Context) error { return nil }

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
