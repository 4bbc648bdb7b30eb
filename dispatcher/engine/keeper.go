package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A lease is measured on this worker's monotonic clock from before the statement is sent, so that it ends here
// before it ends in the database. It is extended after a third of its time; in the last sixth the worker no longer
// relies on it, so that a delivery has time to notice that it was cut before another worker may begin.

var (
	errLeaseLost = errors.New("another worker took over the lease while the delivery ran")
	errLeaseOver = errors.New("the lease could not be extended in time; the database was unreachable, or this process was stopped")
)

// keepLeases extends the leases of rows that are queued or being delivered until stop is closed, and
// cuts deliveries whose lease cannot be kept (CONTRACT C-31).
func (r *run) keepLeases(stop <-chan struct{}) {
	k := keeper{apart: map[string]bool{}, busy: map[string]bool{}, places: make(chan struct{}, 2)}
	defer k.extending.Wait()
	tick := time.NewTicker(min(r.cfg.Lease/6, r.cfg.DeliveryTimeout/4))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		case <-r.flight.inDoubt:
		}
		now := time.Now()
		r.flight.cutUnsafe(now)
		r.leaveStuck(now)
		for topic, rows := range k.begin(r.flight.due(now)) {
			k.extending.Go(func() { r.extendLeases(&k, topic, rows) })
		}
	}
}

// keeper extends leases, all topics' in one statement. When that is refused or takes too long, its topics are extended
// apart, two at once, until that succeeds (CONTRACT C-33).
type keeper struct {
	extending sync.WaitGroup
	places    chan struct{} // of topics apart: they leave connections to all others

	mu    sync.Mutex
	apart map[string]bool // topics
	busy  map[string]bool // one extension at a time of a topic apart, and one of all others, which is ""
}

// begin returns the rows to extend now, by topic apart.
func (k *keeper) begin(due []*row) map[string][]*row {
	k.mu.Lock()
	defer k.mu.Unlock()
	begun := map[string][]*row{}
	for _, row := range due {
		topic := row.event.Topic
		if !k.apart[topic] {
			topic = ""
		}
		if !k.busy[topic] {
			begun[topic] = append(begun[topic], row)
		}
	}
	for topic := range begun {
		k.busy[topic] = true
	}
	return begun
}

// end ends an extension, of which these rows failed.
func (k *keeper) end(topic string, failed []*row) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.busy, topic)
	delete(k.apart, topic)
	for _, row := range failed {
		k.apart[row.event.Topic] = true
	}
}

// extendLeases extends the leases of rows of a topic apart, or of all others. What is refused or takes too long is tried
// again in smaller statements, and an extension that fails alone is left.
func (r *run) extendLeases(k *keeper, topic string, rows []*row) {
	if topic != "" {
		k.places <- struct{}{}
		defer func() { <-k.places }()
	}
	var failed []*row
	size := size{chunkRows, storeTimeout}
	for len(rows) > 0 {
		part, began := rows[:min(len(rows), size.rows)], time.Now()
		err := r.extend(part)
		size.learn(len(part), time.Since(began), err)
		if err != nil && !isOdd(err) {
			if r.calls.Err() == nil {
				r.health.sourceFailed(err)
			}
			break
		}
		if err != nil {
			failed = append(failed, part...)
		}
		if err == nil || len(part) == 1 || topic == "" {
			rows = rows[len(part):]
		}
	}
	k.end(topic, failed)
	if topic == "" && len(failed) > 0 {
		notify(r.flight.inDoubt) // its topics are tried at once
	}
}

// extend extends the leases of rows.
func (r *run) extend(rows []*row) error {
	sentAt := time.Now()
	lost, err := storeCall(r.calls, func(ctx context.Context) ([]dispatcher.Lease, error) {
		return r.store.Extend(ctx, leases(rows), r.cfg.Lease)
	})
	if err != nil {
		return err
	}
	gone, behind := r.flight.extended(rows, lost, sentAt)
	r.completer.release(behind)
	if gone > 0 {
		r.completer.leasesLost(gone, "extend")
	}
	return nil
}

// safeUntil is until when a lease may be relied on that was requested at a time.
func (f *flight) safeUntil(sentAt time.Time) time.Time { return sentAt.Add(f.lease - f.lease/6) }

// due returns the rows whose lease was last requested a third of its time ago.
func (f *flight) due(now time.Time) (rows []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.inFlight {
		if !f.safeUntil(now.Add(-f.lease / 3)).Before(r.safeUntil) {
			rows = append(rows, r)
		}
	}
	return rows
}

// extended notes the result of an Extend that was sent at sentAt. Lost rows leave the flight; it
// returns their number, and those behind them in their keys, which must be released. A row that
// finished in the meantime is not lost: its write-back shows whether this worker still has it.
func (f *flight) extended(rows []*row, lost []dispatcher.Lease, sentAt time.Time) (gone int, behind []*row) {
	isLost := setOf(lost)
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []*row
	for _, r := range rows {
		if r.place == 0 {
			continue // finished
		}
		if !isLost[r.event.Lease()] {
			r.safeUntil = f.safeUntil(sentAt)
			continue
		}
		r.lost = true
		f.removeInFlight(r)
		left = append(left, r)
	}
	behind = f.dropLost(left)
	f.work.Broadcast()
	return len(left), behind
}

// dropLost takes lost rows out of the queues, and cuts their deliveries. It returns those behind them:
// a row is not delivered when another worker may be about to deliver one before it.
func (f *flight) dropLost(lost []*row) (behind []*row) {
	isLost := func(r *row) bool { return r.lost }
	for _, r := range lost {
		if r.delivery == nil {
			behind = append(behind, f.keys.leave(r)...)
			continue
		}
		r.delivery.cutUnless((*row).kept, errLeaseLost)
		behind = append(behind, f.keys.stop(r)...)
	}
	for _, t := range f.waiting {
		t.queued = slices.DeleteFunc(t.queued, isLost)
	}
	f.waiting = slices.DeleteFunc(f.waiting, nothingQueued)
	f.forget(lost)
	behind = slices.DeleteFunc(behind, isLost)
	f.removeAllInFlight(behind)
	return behind
}

// cutUnsafe cancels the deliveries whose leases may not be relied on any more.
func (f *flight) cutUnsafe(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	safe := func(r *row) bool { return !r.lost && now.Before(r.safeUntil) }
	for _, r := range f.inFlight {
		if r.delivery != nil && !safe(r) {
			r.delivery.cutUnless(safe, errLeaseOver)
		}
	}
}

func (r *row) kept() bool { return !r.lost }

// cutUnless cancels the delivery, unless one of its rows is still worth it: one lost row of a batch
// must not make the others fail.
func (d *delivery) cutUnless(worthIt func(*row) bool, cause error) {
	if !slices.ContainsFunc(d.rows, worthIt) {
		d.cut(cause)
	}
}

func leases(rows []*row) []dispatcher.Lease {
	return each(rows, func(r *row) dispatcher.Lease { return r.event.Lease() })
}

func setOf(leases []dispatcher.Lease) map[dispatcher.Lease]bool {
	set := make(map[dispatcher.Lease]bool, len(leases))
	for _, l := range leases {
		set[l] = true
	}
	return set
}
