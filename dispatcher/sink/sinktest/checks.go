package sinktest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// waitTimeout bounds what must happen soon. It is only ever waited for by a test that fails.
var waitTimeout = 20 * time.Second

// deliver calls Deliver and checks the number of results.
func deliver(t *testing.T, ctx context.Context, d Destination, batch []*dispatcher.Event) []error {
	t.Helper()
	errs := d.Sink.Deliver(ctx, batch)
	if len(errs) != len(batch) {
		t.Errorf("Deliver responded %d errors for %d events", len(errs), len(batch))
		return make([]error, len(batch))
	}
	return errs
}

func delivered(t *testing.T, d Destination, batch []*dispatcher.Event) {
	t.Helper()
	for i, err := range deliver(t, t.Context(), d, batch) {
		if err != nil {
			t.Errorf("event %d of %d was not delivered: %v", i+1, len(batch), err)
		}
	}
}

// arrivedOnce checks that exactly the events arrived, and each once.
func arrivedOnce(t *testing.T, d Destination, want []*dispatcher.Event) {
	t.Helper()
	var got, sent []string
	for _, m := range d.Arrived() {
		got = append(got, m.Attributes["id"])
	}
	for _, e := range want {
		sent = append(sent, e.ID.String())
	}
	slices.Sort(got)
	slices.Sort(sent)
	if !slices.Equal(got, sent) {
		t.Errorf("%d events arrived, want %d, each once:\n got %v\nwant %v", len(got), len(sent), got, sent)
	}
}

func noPayload(t *testing.T, err error) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), secret) {
		t.Errorf("the error holds the payload: %v", err)
	}
}

// caused checks that the cause of a failure names the sink (CONTRACT C-41).
func (d Destination) caused(t *testing.T, err error) {
	t.Helper()
	if cause := dispatcher.CauseOf(err); err != nil && (d.Refused.Class == "" || cause.Class != d.Refused.Class) {
		t.Errorf("the cause is %+v, want one of the class %q: %v", cause, d.Refused.Class, err)
	}
}

func within[T any](t *testing.T, c <-chan T, complaint string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitTimeout):
		t.Fatal(complaint)
		panic("unreachable")
	}
}

// eventually repeats try until it succeeds.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(waitTimeout)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, waitTimeout, err)
		}
		<-tick.C
	}
}
