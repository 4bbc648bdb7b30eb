// Package dispatcher has the types that all parts of a dispatcher share: [Event], [Store], [Sink], [Config],
// [Snapshot] and the errors of a delivery.
//
// A dispatcher delivers the events of a transactional outbox: it claims rows of outbox_events under a
// lease, hands them to a Sink, and writes the outcome back. Package engine does that. It is a library first:
// a Go service calls engine.New with a Store (package pgstore) and a Sink (package sink, or [Handlers] for
// code in the same process). The dispatcher binary and the Kubernetes operator run the same engine.
// CONTRACT.md in this folder has the rules that comments cite.
//
// # Guarantees
//
//   - At least once: an event whose transaction committed is delivered, or becomes dead with a
//     reason that a person can read. An event whose transaction rolled back is never seen.
//   - Each claim has a number, the lease of the rows that it takes. Every write-back names it, so a
//     worker that lost its lease changes nothing (CONTRACT C-23).
//   - The lease number is the fencing token, which is published with the message. It only rises for a row,
//     through retries, releases and replays, and where the database has forgotten claims: after a crash, a
//     failover, a restore or a move (CONTRACT C-27).
//   - All time is the database's clock; the worker's own clock only measures how long it has
//     held a lease (CONTRACT C-3). Where that clock stood still with a virtual machine, the lease number
//     refuses what the worker writes back.
//   - An unreachable destination spends no attempt, and neither does one that reports a fault of its own
//     (see [DestinationFault]) where nothing of the topic was delivered since the event was claimed, or since
//     it failed before that (CONTRACT C-32). That lasts for a day from the event's first fault since something of its
//     topic was delivered, and for a week while nothing is delivered at all. With the defaults an event that is refused
//     for its content is dead within 9 hours; one that makes the destination report a fault, alone in its topic,
//     9 hours after that day or week.
//   - A faulty row, outcome, call or statement harms itself alone (CONTRACT C-33): a row that cannot be decoded
//     is dead as a poison message, an outcome that the database refuses is left to its lease's end, a call that
//     does not return is reported as stuck and its events are tried again, and a statement that takes too long
//     is tried again smaller.
//   - With [OrderingKey], no event of a key is delivered for the first time before an earlier one is
//     delivered or dead (CONTRACT C-50). Without, events overtake each other.
//
// Not guaranteed: exactly-once delivery (consumers dedupe on the event id), and an order among
// transactions of one key that run side by side.
//
// # Words
//
//	claim         one transaction that takes rows that are due, and gives them a lease
//	lease         the right to deliver a row and to write its outcome back, until a time
//	lease number  the number of the claim; published with the message it is the fencing token
//	attempt       a claim that counts against the row's retry budget
//	delivery      one call of the sink, for one event or a batch
//	ack           the write-back of a delivery that was confirmed
//	copy          copies the event to other topics and acks it, in one transaction (CONTRACT C-19)
//	nack          the write-back of one that failed: the row waits, or is dead
//	release       gives a row back with its attempt
//	extend        moves the end of a lease
//	lost lease    another worker has claimed the row
//	in flight     claimed, and not yet written back
//	paused topic  a topic whose breaker is open while others are delivered
//	gated topic   a topic that is paused because its next event has a type that is not admitted
//	half-open probe  a few events of a paused topic, delivered to see whether it works again
//	probe         a request to the destination that publishes nothing
//	stuck call    a delivery that did not return when its time was over
//	dead letter   the record that an event became dead
//
// # Order per key
//
// A key is an event's partition key, else its aggregate id, in its topic. A claim takes the first live
// rows of a key, each only with all before it, and a process delivers them one at a time; other keys
// continue meanwhile. A row that is retried, scheduled, leased or dead with [OnDeadBlock] delays the later
// ones of its key and nothing else. All this rests on row leases: it holds with any number of workers,
// through crashes and behind a pooler, and a worker that crashes delays the keys of its rows until its
// leases expire. Claim and ack together cost the database about one and a half times as much as
// without order, and a key alone is as fast as its deliveries one after the other.
//
// What it does not do: events of one key whose transactions overlap may commit in another order than
// that of their seq, and then the later one may be delivered first (see package producer, LockKey).
// With [OnDeadContinue] a replayed event comes after the later ones of its key. After a crash events
// are delivered again: again in order, but some of them may have been followed by later ones before. All
// dispatchers of a topic must be set to keep the order.
//
// # State machine
//
//	            Claim                     Ack
//	pending ──────────────▶ processing ─────────▶ delivered
//	   ▲  ▲                  │  │  │ ▲
//	   │  └──── Nack ────────┘  │  │ └─ Claim again, when the lease has expired
//	   └─────── Release ────────┘  │
//	                               └────────────▶ dead
//	                                 Nack with no attempt left or a permanent error;
//	                                 lease expired after the delivery was begun too often
//
// This is all of it; any other call changes nothing, and of two lines for a call the first holds. Tests explore every state that this table
// can reach, and compare the store with each line of it (package internal/model).
//
//	from        verb     guard                   to          attempts  lease
//	pending     claim    due, time over          expired     same      same
//	pending     claim    due, attempts < max     processing  +1        new
//	pending     claim    due, attempts = max     dead        same      same
//	processing  claim    lease over, time over   expired     same      same
//	processing  claim    lease over, begun < 4   processing  same      new
//	processing  claim    lease over, begun = 4   dead        same      same
//	processing  begin    own lease               processing  same      same
//	processing  ack      own lease               delivered   same      same
//	processing  copy     own lease               delivered   same      same
//	processing  nack     own lease, retry        pending     same      same
//	processing  nack     own lease, final        dead        same      same
//	processing  extend   own lease               processing  same      same
//	processing  release  own lease               pending     -1        same
//	dead        replay   by a person             pending     0         same
//	pending     withdraw  never claimed          withdrawn   same      same
//	dead        withdraw  never claimed          withdrawn   same      same
//
// A lease that ends without an outcome spends no attempt. Its row may have ended the process, so the worker that claims it
// next delivers few such rows at once, and counts each of these deliveries when it begins; begun is their number since the
// last outcome. A row that was among them when a process ended again is delivered alone.
//
// A lease stays its worker's own until another claim, also when it is over. attempts is the retry budget
// that is used up, and max is the row's own, else the dispatcher's. A nack spends the attempt. A release
// gives it back: the delivery never began, or its failure is the destination's. Nothing leaves delivered,
// withdrawn or expired: the time of an event was over when it was to be claimed. A withdrawal is a producer's, in its own transaction: of an event that no worker has claimed, for all that the database knows.
// A claim with order per key takes a row only together with every earlier live row of its key.
package dispatcher
