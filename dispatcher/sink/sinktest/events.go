package sinktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// secret is in every payload, and must be in no error. Payloads have no spaces, because a JSON
// format may leave them out.
const secret = "card-4111-1111"

// events returns new events of one topic.
func events(n int) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, n)
	for i := range batch {
		batch[i] = bareEvent()
		batch[i].ID = uuid.Must(uuid.NewV7())
		batch[i].Payload = fmt.Appendf(nil, `{"secret":%q,"n":%d}`, secret, i)
	}
	return batch
}

// wholeEvent has every field set.
func wholeEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID:                uuid.MustParse("0197a1e0-0000-7000-8000-000000000001"),
		Seq:               9_007_199_254_740_993, // more than a float64 holds
		Namespace:         "shop",
		Topic:             "orders",
		TenantID:          uuid.NullUUID{UUID: uuid.MustParse("11111111-2222-4333-8444-555555555555"), Valid: true},
		DedupeKey:         "11111111-2222-4333-8444-555555555555/order-7",
		PartitionKey:      "customer-3",
		EventType:         "OrderPlaced",
		AggregateType:     "order",
		AggregateID:       "order-7",
		AggregateSequence: 9_007_199_254_740_995,
		Headers: map[string]string{
			"correlation_id": "c-42",
			"traceparent":    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"tracestate":     "vendor=value,other=thing",
			"topic":          "chosen-by-the-producer",
		},
		Payload:   []byte(`{"order":7,"secret":"` + secret + `"}`),
		CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC),
		Attempt:   3,
		// More than a float holds.
		LeaseNumber: 9007199254740997,
	}
}

var wholeAttributes = map[string]string{
	"specversion":       "1.0",
	"id":                "0197a1e0-0000-7000-8000-000000000001",
	"source":            "/outbox/shop/orders",
	"type":              "OrderPlaced",
	"subject":           "order-7",
	"time":              "2026-03-04T05:06:07.890123Z",
	"datacontenttype":   "application/json",
	"trackingid":        "0197a1e0-0000-7000-8000-000000000001",
	"dedupekey":         "11111111-2222-4333-8444-555555555555/order-7",
	"fencingtoken":      "0009007199254740997",
	"attempt":           "3",
	"outboxnamespace":   "shop",
	"topic":             "orders",
	"aggregatetype":     "order",
	"aggregateid":       "order-7",
	"tenantid":          "11111111-2222-4333-8444-555555555555",
	"sequence":          "0009007199254740993",
	"aggregatesequence": "0009007199254740995",
	"partitionkey":      "customer-3",
	"correlationid":     "c-42",
	"traceparent":       "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	"tracestate":        "vendor=value,other=thing",
	"headertopic":       "chosen-by-the-producer",
}

// bareEvent has only what every row has.
func bareEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID:          uuid.MustParse("0197a1e0-0000-7000-8000-000000000002"),
		Seq:         1,
		Namespace:   "shop",
		Topic:       "orders",
		Headers:     map[string]string{},
		Payload:     []byte(`{"secret":"` + secret + `"}`),
		CreatedAt:   time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		Attempt:     1,
		LeaseNumber: 1,
	}
}

var bareAttributes = map[string]string{
	"specversion":     "1.0",
	"id":              "0197a1e0-0000-7000-8000-000000000002",
	"source":          "/outbox/shop/orders",
	"type":            "orders",
	"time":            "2026-03-04T05:06:07Z",
	"datacontenttype": "application/json",
	"trackingid":      "0197a1e0-0000-7000-8000-000000000002",
	"fencingtoken":    "0000000000000000001",
	"attempt":         "1",
	"outboxnamespace": "shop",
	"topic":           "orders",
	"sequence":        "0000000000000000001",
	"partitionkey":    "0197a1e0-0000-7000-8000-000000000002",
}

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
