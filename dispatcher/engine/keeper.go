package engine

import (
	"context"
	"errors"
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
	tick := time.NewTicker(min(outlives(r.d.cfg.Lease)/3, r.d.cfg.DeliveryTimeout/4))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		case <-r.flight.signals.inDoubt:
		}
		now := time.Now()
		r.flight.leases().cutUnsafe(now)
		r.leaveStuck(now)
		if rows := r.flight.leases().outlived(now); len(rows) > 0 {
			k.extending.Go(func() { k.outlive(r, rows) })
		}
		for topic, rows := range k.begin(r.flight.leases().due(now)) {
			k.extending.Go(func() { r.extendLeases(&k, topic, rows) })
		}
	}
}

// leaveStuck cuts deliveries that are overdue, and writes the rows of those that are stuck back as failed.
func (r *run) leaveStuck(now time.Time) {
	stuck, returned := r.flight.leases().cutOverdue(now, r.d.cfg.DeliveryTimeout)
	r.completer.release(returned)
	for _, d := range stuck {
		r.log.Error("a call of the sink does not return; its events are tried again, and it keeps a place of concurrency until it returns",
			"topic", d.topic.name, "event", d.rows[0].event.ID, "events", len(d.rows), "running", d.took)
		r.leave(d)
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
			if r.life.calls.Err() == nil {
				r.d.health.sourceFailed(err)
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
		notify(r.flight.signals.inDoubt) // its topics are tried at once
	}
}

// extend extends the leases of rows.
func (r *run) extend(rows []*row) error {
	sentAt := time.Now()
	lost, err := storeCall(r.life.calls, func(ctx context.Context) ([]dispatcher.Lease, error) {
		return r.d.store.Extend(ctx, leasesOf(rows), r.d.cfg.Lease)
	})
	if err != nil {
		return err
	}
	gone, returned := r.flight.leases().extended(rows, lost, sentAt)
	r.completer.release(returned)
	if gone > 0 {
		r.completer.leasesLost(gone, "extend")
	}
	return nil
}

func leasesOf(rows []*row) []dispatcher.Lease {
	return each(rows, func(r *row) dispatcher.Lease { return r.event.Lease() })
}

func setOf(leases []dispatcher.Lease) map[dispatcher.Lease]bool {
	set := make(map[dispatcher.Lease]bool, len(leases))
	for _, l := range leases {
		set[l] = true
	}
	return set
}
