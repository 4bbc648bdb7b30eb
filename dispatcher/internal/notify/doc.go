// Package notify sends a CloudEvent over HTTP for each dead letter of a dispatcher that has notify.
//
// # Guarantees
//
// At least once. The transaction that makes an event dead marks the dead letter (outbox_dead_letters.notify_at; pgstore
// enables the column's default), and the mark is removed when the address has responded 2xx. A process that is killed
// between the two leaves the mark: another one sends the same notification again, with the same id. A dispatcher without
// an address marks nothing, so there are no notifications of dead letters from before it had one.
//
// A notification that the address does not accept is tried again for [GiveUpAfter], counted from when the event became
// dead: after half the time that has passed since, at least 5 seconds and at most 5 minutes, and no sooner than the
// response's Retry-After. Then it is given up, counted and logged: the dead letter stays, with notify_attempts and
// without notified_at.
//
// Delivery never waits for notifications. Each process takes some dead letters at a time for itself (FOR UPDATE SKIP LOCKED, until
// notify_at), so any number of processes share the work, and nothing is kept in a session.
//
// # The message
//
// The event is that of sink http with contentMode Binary: see package cloudevent for the attributes.
//
//	attribute     value
//	------------  ---------------------------------------------------------------------------
//	id            a UUID made of the event's id and the dead letter's: the same at each attempt, and another
//	              for another dead letter of the same event
//	type          dev.outbox.deadletter.created
//	source        /outbox/<namespace>/<topic>
//	subject       the aggregate's id, if the event has one
//	time          when the event became dead
//	sequence      the dead letter's id
//	attempt       the number of the attempt to send it; fencingtoken is the same
//
// The body is what `dispatcher dead list --output json` says of the dead letter, with namespace and dispatcher: a
// [Notification]. It has the event's last error, and never its payload or its headers.
package notify
