package replay

import (
	"cmp"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// add counts items of a state.
func add(p *status.Replay, state, skipped string, n int64) {
	p.Matched += n
	if n == 0 {
		return
	}
	switch state {
	case "waiting":
		p.Waiting += n
	case "requeued":
		p.Pending += n
	case "delivered":
		p.Delivered += n
	case "dead_again":
		p.DeadAgain += n
	case "discarded":
		p.Discarded += n
	case "skipped":
		p.Skipped = append(p.Skipped, status.Skipped{Reason: skipped, Count: n})
		slices.SortFunc(p.Skipped, func(a, b status.Skipped) int { return cmp.Compare(a.Reason, b.Reason) })
	}
}
