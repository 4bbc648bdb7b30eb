package replay

import (
	"cmp"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// State is what became of one dead letter of a set, as outbox_replay_items has it.
type State string

// The states.
const (
	// StateWaiting: it has not had its turn.
	StateWaiting State = "waiting"
	// StateRequeued: its event was put back, and is neither delivered nor dead yet.
	StateRequeued State = "requeued"
	// StateDelivered: its event was put back, and is delivered.
	StateDelivered State = "delivered"
	// StateDeadAgain: its event was put back, and is dead again.
	StateDeadAgain State = "dead_again"
	// StateDiscarded: it is handled, and its event stays dead.
	StateDiscarded State = "discarded"
	// StateSkipped: it was left as it was, for a reason.
	StateSkipped State = "skipped"
)

// add counts items of a state.
func add(p *status.Replay, state State, skipped string, n int64) {
	p.Matched += n
	if n == 0 {
		return
	}
	switch state {
	case StateWaiting:
		p.Waiting += n
	case StateRequeued:
		p.Pending += n
	case StateDelivered:
		p.Delivered += n
	case StateDeadAgain:
		p.DeadAgain += n
	case StateDiscarded:
		p.Discarded += n
	case StateSkipped:
		p.Skipped = append(p.Skipped, status.Skipped{Reason: skipped, Count: n})
		slices.SortFunc(p.Skipped, func(a, b status.Skipped) int { return cmp.Compare(a.Reason, b.Reason) })
	}
}
