package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

var errOverdue = errors.New("the delivery took longer than delivery.timeout")

// leases is the door of the keeper, and of a stop, to a flight: they cut deliveries, and give up rows.
type leases flight

// leases is the flight as the keeper sees it.
func (f *flight) leases() *leases { return (*leases)(f) }

// abandoned is a delivery that the engine no longer waits for, and those of its rows that are still ours.
type abandoned struct {
	call
	rows []*row
}

// abandon gives up on a delivery. Rows that wait behind its rows in their keys must be released.
func (l *leases) abandon(d *delivery, why error, now time.Time) (a abandoned, returned []*row) {
	a.call = call{d.topic, d.began, now.Sub(d.began), why}
	for _, r := range d.rows {
		if r.lost || r.place == 0 {
			continue
		}
		a.rows = append(a.rows, r)
		l.account.leave(r)
		returned = append(returned, l.queue.keys.leave(r)...)
	}
	l.account.leave(returned...)
	d.abandoned = true
	return a, returned
}

// abandonAll gives up on the deliveries that still run.
func (l *leases) abandonAll() (all []abandoned) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.calls.active {
		if !d.abandoned {
			a, _ := l.abandon(d, errGraceOver, time.Now()) // the keys were disbanded when the flight was closed
			all = append(all, a)
		}
	}
	return all
}

// cutOverdue cancels the deliveries that take longer than limit, and gives up on those that have not returned
// stuckAfter later (CONTRACT C-34).
func (l *leases) cutOverdue(now time.Time, limit time.Duration) (stuck []abandoned, returned []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.calls.active {
		switch took := now.Sub(d.began); {
		case d.abandoned || took < limit:
		case !d.overdue:
			d.overdue = true
			d.cut(errOverdue)
		case took >= limit+stuckAfter:
			d.stuck = true
			d.topic.calls.stuck++
			for _, r := range d.rows {
				d.pinned += r.bytes
			}
			l.account.pin(d.topic, d.pinned)
			a, rows := l.abandon(d, errOverdue, now)
			if returned = append(returned, rows...); len(a.rows) > 0 { // others may have all of them
				stuck = append(stuck, a)
			}
		}
	}
	return stuck, returned
}

// safeUntil is until when a lease may be relied on that was requested at a time.
func safeUntil(sentAt time.Time, lease time.Duration) time.Time { return sentAt.Add(lease - lease/6) }

// due returns the rows whose lease was last requested a third of its time ago.
func (l *leases) due(now time.Time) (rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.account.inFlight {
		if !safeUntil(now.Add(-l.lease/3), l.lease).Before(r.safeUntil) {
			rows = append(rows, r)
		}
	}
	return rows
}

// extended notes the result of an Extend that was sent at sentAt. Lost rows leave the flight; it
// returns their number, and those behind them in their keys, which must be released. A row that
// finished in the meantime is not lost: its write-back shows whether this worker still has it.
func (l *leases) extended(rows []*row, lost []dispatcher.Lease, sentAt time.Time) (gone int, returned []*row) {
	isLost := setOf(lost)
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*row
	for _, r := range rows {
		if r.place == 0 {
			continue // finished
		}
		if !isLost[r.event.Lease()] {
			r.safeUntil = safeUntil(sentAt, l.lease)
			continue
		}
		r.lost = true
		l.account.leave(r)
		left = append(left, r)
	}
	returned = l.dropLost(left)
	l.signals.work.Broadcast()
	return len(left), returned
}

// dropLost takes lost rows out of the queues, and cuts their deliveries. It returns those behind them:
// a row is not delivered when another worker may be about to deliver one before it.
func (l *leases) dropLost(lost []*row) (returned []*row) {
	for _, r := range lost {
		if r.delivery == nil {
			returned = append(returned, l.queue.keys.leave(r)...)
			continue
		}
		r.delivery.cutUnlessSafe(time.Now(), errLeaseLost)
		returned = append(returned, l.queue.keys.stop(r)...)
	}
	l.queue.drop()
	(*flight)(l).forget(lost)
	returned = slices.DeleteFunc(returned, (*row).isLost)
	l.account.leave(returned...)
	return returned
}

// cutUnsafe cancels the deliveries whose leases may not be relied on any more.
func (l *leases) cutUnsafe(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.calls.active {
		d.cutUnlessSafe(now, errLeaseOver)
	}
}

// cutUnlessSafe cancels the delivery, unless the lease of one of its rows may be relied on: one lost row of a batch must not make
// the others fail.
func (d *delivery) cutUnlessSafe(now time.Time, cause error) {
	if !slices.ContainsFunc(d.rows, func(r *row) bool { return !r.lost && now.Before(r.safeUntil) }) {
		d.cut(cause)
	}
}

// cutAll cancels the running deliveries.
func (l *leases) cutAll(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.calls.active {
		d.cut(cause)
	}
}
