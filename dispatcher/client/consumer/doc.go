// Package consumer makes the consumer of an outbox's events idempotent: an event that is delivered twice, replayed, or
// delivered while the consumer crashes takes effect once (CONTRACT C-80).
//
//	var billing = consumer.New(consumer.Options{ID: "billing"})
//
//	outcome, err := billing.Handle(ctx, pool, event, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "insert into invoices …")
//		return err
//	})
//
// The table processed_events has a record of each event that was handled, by event id and consumer id. Handle writes the
// record and the effect in one transaction. [SQL] makes the tables; [Consumer.Migrate] runs it.
//
// # Messages
//
// [FromHTTP], [FromKafka] and the like make an [Event] of each sink's message, in each contentMode. They take headers
// and bytes, so this package needs no broker's client. [Consumer.HTTP] is a whole handler for the http sink.
//
// # Calls to others
//
// What the effect writes through the transaction happens once. A call to another service may be made again, since the process
// may crash between the call and the commit. There are two keys:
//
//	[Event.IdempotencyKey]  the event id, the same for every delivery: for a callee that does a thing once for each
//	                        key, such as a payment provider's Idempotency-Key
//	[Event.FencedKey]       event id and fencing token, new for each delivery: for logs, and for a callee that compares
//	                        tokens. With this as an Idempotency-Key, a charge whose response was lost is made twice
//
// # Older deliveries
//
// The dispatcher gives a delivery up when its lease ends, and begins another one with a higher fencing token; the first may
// still run. Without Options.Fence the one that records first wins, and the effect happens once. With it a delivery is
// refused when a later one is known, even where that failed: for effects outside of the database that must not be
// older than what came after. An event that was handled is acknowledged whatever the token. Tokens rise also after a crash
// or a failover of the outbox's database (CONTRACT C-27).
//
// # Order
//
// Events may come in any order (RULE-010-020). Who needs one sets ordering Key at the dispatcher, or compares
// [Event.Sequence], which rises for one aggregate, with that of the last event applied to it.
package consumer
