// Package dispatcher delivers the events of a transactional outbox: it claims rows of
// outbox_events under a lease, hands them to a [Sink], and writes the outcome back.
//
// It is a library first: a Go service embeds it with a [Store] (package pgstore) and a [Sink]
// (package sink, or [Handlers] for code in the same process). The dispatcher binary and the
// Kubernetes operator run the same engine.
//
// # Guarantees
//
//   - At least once: an event whose transaction committed is delivered, or becomes dead with a
//     reason that a person can read. An event whose transaction rolled back is never seen.
//   - A lease belongs to one attempt of one worker. Every write-back names both, so a worker that
//     lost its lease changes nothing (CONTRACT C-23).
//   - The attempt number is the fencing token. It only rises for a row, and it is published with
//     the message (CONTRACT C-27). It is published twice only when a person replays the row, which
//     begins again at 1, or a crash of the database undoes the claims of its last moments.
//   - All time is the database's clock; the worker's own clock only measures how long it has
//     held a lease (CONTRACT C-3).
//   - An unreachable destination spends no attempt (CONTRACT C-32).
//   - With [OrderingKey], no event of a key is delivered for the first time before an earlier one is
//     delivered or dead (CONTRACT C-50). Without, events overtake each other.
//
// Not guaranteed: exactly-once delivery (consumers dedupe on the event id), and an order among
// transactions of one key that run side by side.
//
// # Order per key
//
// A key is an event's partition key, else its aggregate id, in its topic. A claim takes the first live
// rows of a key, each only with all before it, and a process delivers them one at a time; other keys go
// on beside it. A row that is retried, scheduled, leased by anybody or dead with [OnDeadBlock] holds up
// the later ones of its key and nothing else. All this rests on row leases: it holds with any number of
// workers, through crashes and behind a pooler, and a worker that dies delays the keys that it held
// until its leases expire. Claim and ack together cost the database about one and a half times as much as
// without order, and a key alone is as fast as its deliveries one after the other.
//
// What it does not do: events of one key whose transactions overlap may commit in another order than
// that of their seq, and then the later one may be delivered first (see package producer, LockKey).
// With [OnDeadContinue] a replayed event comes after those that went on without it. After a crash events
// are delivered again: again in order, but some of them may have been followed by later ones before. All
// dispatchers of a topic must be told to keep the order.
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
//	                                 lease expired with no attempt left
//
// This is all of it; whatever else is asked changes nothing. Tests explore every state that this table
// can reach, and compare the store with each line of it (package internal/model).
//
//	from        verb     guard                        to          attempts
//	pending     claim    due, attempts < max          processing  +1
//	pending     claim    due, attempts = max          dead        same
//	processing  claim    lease over, attempts < max   processing  +1
//	processing  claim    lease over, attempts = max   dead        same
//	processing  ack      own lease                    delivered   same
//	processing  nack     own lease, retry             pending     same
//	processing  nack     own lease, final             dead        same
//	processing  nack     own lease, unspent           pending     -1
//	processing  extend   own lease                    processing  same
//	processing  release  own lease                    pending     -1
//	dead        replay   by a person                  pending     0
//
// A lease is a worker and an attempt, and stays its worker's own until another claim, also when it is
// over. Release gives the attempt back; it is for deliveries that never began. A nack of an unspent attempt
// is a release that waits: nothing was sent. Nothing leaves delivered.
// A claim with order per key takes a row only together with every earlier live row of its key.
package dispatcher
