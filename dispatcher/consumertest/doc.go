// Package consumertest finds out whether a consumer of an outbox's events keeps the rules of consumers (CONTRACT C-81),
// and names the one that it breaks. It needs no outbox and no broker: it makes deliveries, and counts effects.
//
//	func TestKeepsTheRules(t *testing.T) {
//		consumertest.Verify(t, consumertest.Consumer{
//			Event:   func() *consumer.Event { return &consumer.Event{EventType: "OrderPlaced", Payload: []byte(`{"order": 7}`)} },
//			Deliver: func(ctx context.Context, e *consumer.Event) error { return billing.OnEvent(ctx, e) },
//			Effects: func(ctx context.Context, id uuid.UUID) (int, error) { … count invoices of this event … },
//		})
//	}
//
// It works with any Go code that takes events, whether or not that uses package consumer.
package consumertest
