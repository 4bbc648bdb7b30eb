package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

var errOverdue = errors.New("the delivery took longer than delivery.timeout")

// abandoned is a delivery that the engine no longer waits for, and those of its rows that are still ours.
type abandoned struct {
	topic *topic
	rows  []*row
	began time.Time
}

// abandon gives up on a delivery. Rows that wait behind its rows in their keys must be released.
func (f *flight) abandon(d *delivery) (a abandoned, behind []*row) {
	a = abandoned{topic: d.topic, began: d.began}
	for _, r := range d.rows {
		if r.lost || r.place == 0 {
			continue
		}
		a.rows = append(a.rows, r)
		f.removeInFlight(r)
		behind = append(behind, f.keys.leave(r)...)
	}
	f.removeAllInFlight(behind)
	d.abandoned = true
	return a, behind
}

// abandonAll gives up on the deliveries that still run.
func (f *flight) abandonAll() (all []abandoned) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.active {
		if !d.abandoned {
			a, _ := f.abandon(d) // the keys were disbanded when the flight was closed
			all = append(all, a)
		}
	}
	return all
}

// cutOverdue cancels the deliveries that take longer than limit, and gives up on those that have not returned
// stuckAfter later (CONTRACT C-34).
func (f *flight) cutOverdue(now time.Time, limit time.Duration) (stuck []abandoned, behind []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.active {
		took := now.Sub(d.began)
		if took > f.lease/3 {
			f.survived(d.rows) // or other suspects would wait for a call that hangs
		}
		switch {
		case d.abandoned || took < limit:
		case !d.overdue:
			d.overdue = true
			d.cut(errOverdue)
		case took >= limit+stuckAfter:
			d.stuck = true
			d.topic.stuck++
			for _, r := range d.rows {
				d.pinned += r.bytes
			}
			d.topic.bytes += d.pinned
			f.bytes += d.pinned
			a, rows := f.abandon(d)
			stuck, behind = append(stuck, a), append(behind, rows...)
		}
	}
	return stuck, behind
}

// stuckCalls sets the calls that are stuck, the longest first, and whether they leave no room.
func (f *flight) stuckCalls(s *dispatcher.Snapshot) {
	var pinned int64
	for d := range f.active {
		if d.stuck {
			s.Stuck = append(s.Stuck, dispatcher.StuckCall{Topic: d.topic.name, EventID: d.rows[0].event.ID, Events: len(d.rows), Since: d.began})
			pinned += d.pinned
		}
	}
	slices.SortFunc(s.Stuck, func(a, b dispatcher.StuckCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic))
	})
	s.StuckCalls = len(s.Stuck)
	s.NoRoom = pinned >= f.maxBytes || f.alone() && pinned >= f.maxBytes-f.spare()
	s.Stuck = s.Stuck[:min(len(s.Stuck), dispatcher.StuckListed)]
}

// leaveStuck cuts deliveries that are overdue, and writes the rows of those that are stuck back as failed.
func (r *run) leaveStuck(now time.Time) {
	stuck, behind := r.flight.cutOverdue(now, r.cfg.DeliveryTimeout)
	r.completer.release(behind)
	for _, d := range stuck {
		r.log.Error("a call of the sink does not return; its events are tried again, and it keeps a place of concurrency until it returns",
			"topic", d.topic.name, "event", d.rows[0].event.ID, "events", len(d.rows), "running", now.Sub(d.began))
		r.leave(d, errOverdue, now.Sub(d.began))
	}
}
