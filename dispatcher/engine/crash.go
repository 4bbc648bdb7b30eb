package engine

import (
	"context"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// No worker knows what ended another one: the delivery of any row that it held, or nothing of the kind. So rows whose last lease
// ended without an outcome are delivered few at once, and each such delivery is counted before it begins. If the process
// ends again, those that were not counted are as before, and those that were are delivered alone. So the row that ends
// the process is dead after five crashes, and no other is charged for it (CONTRACT C-21, C-22). A delivery that has run for a
// thirtieth of the lease is not counted any more, unless its rows are all that the process has: what ends it then is as likely
// something else.

// mostSuspects is the most rows whose last lease ended without an outcome, from the begin of their delivery until its
// outcome is written.
const mostSuspects = 8

// outlives is how long a delivery runs until its begin is not what ends the process.
func outlives(lease time.Duration) time.Duration { return lease / 30 }

// outlived returns the suspects in delivery for so long that are not to count any more.
func (l *leases) outlived(now time.Time) (rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.calls.active {
		if !d.outlived && !d.abandoned && !d.counted.IsZero() && now.Sub(d.counted) >= outlives(l.lease) && len(l.account.inFlight) > len(d.rows) {
			d.outlived = true
			rows = append(rows, slices.DeleteFunc(slices.Clone(d.rows), func(r *row) bool { return r.suspicion == 0 || r.lost })...)
		}
	}
	return rows
}

// outlive takes back the counts of suspects, and lets others begin. Where that fails they stay counted.
func (k *keeper) outlive(r *run, rows []*row) {
	_, _ = storeCall(r.life.calls, func(ctx context.Context) ([]dispatcher.Lease, error) { return r.d.store.Outlive(ctx, leasesOf(rows)) })
	r.flight.mu.Lock()
	defer r.flight.mu.Unlock()
	r.flight.survived(rows)
}

// survived lets other suspects begin: the outcomes of these rows are written, or their delivery lasts for long. Before that they
// would be charged with the row that ends the process next.
func (f *flight) survived(rows []*row) {
	before := f.calls.suspicion
	for _, r := range rows {
		f.calls.suspicion -= r.suspicion
		r.suspicion = 0
	}
	if f.calls.suspicion < before {
		f.signals.work.Broadcast()
	}
}

// weight is what the delivery of a row takes of mostSuspects.
func (r *row) weight() int {
	if r.event.Suspicion > 1 {
		return mostSuspects
	}
	return r.event.Suspicion
}

// countSuspects counts the deliveries of the suspects among the rows. If that fails they must not begin.
func (r *run) countSuspects(rows []*row) error {
	suspects := leasesOf(slices.DeleteFunc(slices.Clone(rows), func(r *row) bool { return r.weight() == 0 }))
	if len(suspects) == 0 {
		return nil
	}
	lost, err := storeCall(r.life.calls, func(ctx context.Context) ([]dispatcher.Lease, error) { return r.d.store.Begin(ctx, suspects) })
	if err == nil && len(lost) > 0 {
		err = errLeaseLost
	}
	r.flight.mu.Lock()
	defer r.flight.mu.Unlock()
	rows[0].delivery.counted = time.Now()
	return err
}
