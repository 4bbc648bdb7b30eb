package engine

import (
	"context"
	"slices"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// No worker knows what ended another one: the delivery of any row that it held, or nothing of the kind. So rows whose last lease
// ended without an outcome are delivered few at once, and each such delivery is counted before it begins. If the process
// ends again, those that were not counted are as before, and those that were are delivered alone. So the row that ends
// the process is dead after five crashes, and no other is charged for it (CONTRACT C-21, C-22).

// mostSuspects is the most rows whose last lease ended without an outcome, from the begin of their delivery until its
// outcome is written.
const mostSuspects = 8

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
	return err
}
