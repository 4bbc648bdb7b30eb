// Package producer writes events into the outbox, inside the transaction of the work that they
// report.
//
//	var outbox = producer.New(producer.Options{})
//
//	receipt, err := outbox.Enqueue(ctx, tx, producer.Event{
//		Namespace: "shop", Topic: "orders", EventType: "OrderPlaced",
//		AggregateType: "order", AggregateID: order.ID, Payload: order,
//	})
//
// # Guarantees
//
//   - The event and the work commit together or not at all (CONTRACT C-10). Nothing is sent to
//     anybody here: a dispatcher delivers the event after the commit, at least once.
//   - A dedupe key makes a repeated Enqueue harmless: no error, no second row, and the receipt has
//     the id of the row that stands (CONTRACT C-11). Of two transactions with the same key at the
//     same time the second waits for the first, and enqueues only if that one rolls back. At
//     isolation level repeatable read or serializable it may get a serialization failure instead:
//     repeat the transaction, as for any other.
//   - An event that PostgreSQL would refuse is refused before anything is sent, with [ErrInvalid],
//     so the transaction is not lost (CONTRACT C-12, C-13, C-16).
//
// Only a transaction gives the first guarantee. The types do not force one: a program that has
// nothing but the event to write may pass a connection. A login with the setting outbox.require_data is refused that,
// with SQLSTATE 25P01, and any transaction that has written nothing before the event.
//
// # Order
//
// A dispatcher with ordering Key delivers the events of a key in the order in which they were
// inserted. Events of one transaction, or of transactions one after the other, are in that order. Of
// two transactions at the same time the second may insert its event later and commit it earlier; then
// a dispatcher may deliver it before the first is to be seen. Where each transaction locks the row of
// its aggregate before it enqueues, as one that updates it does, that cannot happen. Elsewhere
// Event.LockKey prevents it: transactions that enqueue for the same key take turns, so that they
// insert in the order in which they commit. All producers of a key must set it. It costs one advisory
// lock and no round trip; a transaction that lasts a second longer holds up its key's others
// for a second. The lock is one of 1,024 slots by the key's hash: a transaction holds at most so many, and a
// key shares its turn with one in a thousand. A batch takes its locks in one order. A transaction that enqueues
// several keys in several calls has no such order, and PostgreSQL may have to end a deadlock: use one batch.
//
// # Taking an event back
//
// Withdraw takes back an event that no dispatcher has claimed yet, in the transaction that makes it void, and says truly whether it
// did (CONTRACT C-17): [Withdrawn] is never sent, [TooLate] was or may have been.
//
// # Retries of one event
//
// Event.Expires and Event.ExpiresAt end the time in which an event is worth sending (CONTRACT C-18).
//
// Event.MaxAttempts and Event.Retry take the place of the dispatcher's maxAttempts and backoff.
//
// # Other languages
//
// Enqueue and EnqueueBatch each call one SQL function (CONTRACT C-15), which any language can call in its
// transaction:
//
//	select id, inserted from outbox.enqueue(
//	    p_namespace => 'shop', p_topic => 'orders', p_payload => '{"order": 42}',
//	    p_event_type => 'OrderPlaced', p_aggregate_type => 'order', p_aggregate_id => '42',
//	    p_dedupe_key => 'order-42-placed', p_headers => '{"correlation_id": "c-7"}',
//	    p_delay => '10 minutes');
//
// Only the first three are required. inserted is false when the dedupe key was there before. README.md next to
// this file has all arguments, and enqueue_batch. The login needs what
// `dispatcher migrate grants --for producer --role NAME` prints.
package producer
