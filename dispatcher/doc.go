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
//     the message (CONTRACT C-27).
//   - All time is the database's clock; the worker's own clock only measures how long it has
//     held a lease (CONTRACT C-3).
//   - An unreachable destination spends no attempt (CONTRACT C-32).
//
// Not guaranteed: exactly-once delivery (consumers dedupe on the event id), and order (events of
// one key may overtake each other when one is retried).
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
// Claim raises attempts by one. Release gives that attempt back; it is for deliveries that never
// began. Nothing leaves delivered; only a person's replay leaves dead.
package dispatcher
