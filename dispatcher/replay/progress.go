package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Why an item is skipped.
const (
	// SkippedResolved: somebody else replayed or discarded it meanwhile, or retention removed it.
	SkippedResolved = "already_resolved"
	// SkippedNotDead: its event is not dead any more.
	SkippedNotDead = "not_dead"
	// SkippedGone: its event is not there any more.
	SkippedGone = "gone"
	// SkippedEarlierDied: an earlier event of its key died again.
	SkippedEarlierDied = "earlier_died"
	// SkippedStopped: the operation was stopped before its turn.
	SkippedStopped = "stopped"
)

// Progress is how far an operation is. Matched is the sum of the others.
type Progress struct {
	ID        uuid.UUID `json:"id"`
	Namespace string    `json:"namespace"`
	Action    Action    `json:"action"`
	// Rate is the most events a second.
	Rate int `json:"rate"`
	// Matched is the size of the set.
	Matched int64 `json:"matched"`
	// Waiting have not had their turn.
	Waiting int64 `json:"waiting"`
	// Pending were put back, and are neither delivered nor dead yet.
	Pending int64 `json:"pending"`
	// Delivered were put back, and are delivered.
	Delivered int64 `json:"delivered"`
	// DiedAgain were put back, and are dead again.
	DiedAgain int64 `json:"diedAgain"`
	// Discarded are handled, and stay dead.
	Discarded int64 `json:"discarded"`
	// Skipped are left as they were, by the reason, in the order of the reasons.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Unknown were put back, and retention removed the set before anybody looked for their outcomes.
	Unknown int64 `json:"unknown,omitempty"`
	// WaitingFor is what the operation waits for that is not of it, by the reason. It is told by [Replays.Progress], and
	// by [Replays.Observe] when no outcome is new.
	WaitingFor []Wait `json:"waitingFor,omitempty"`
	// BeganAt is when the set was fixed. Zero for a dry run.
	BeganAt time.Time `json:"beganAt,omitzero"`
	// FinishedAt is when the last outcome was known. Zero before.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Stopped is why what waited was skipped, or empty.
	Stopped string `json:"stopped,omitempty"`
}

// Skipped is a number of letters that were left as they were.
type Skipped struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Done are those that had their turn.
func (p Progress) Done() int64 { return p.Matched - p.Waiting }

// String is the progress in one line.
func (p Progress) String() string {
	parts := []string{fmt.Sprintf("%d of %d done", p.Done(), p.Matched)}
	count := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	count(p.Delivered, "delivered")
	count(p.DiedAgain, "died again")
	count(p.Discarded, "discarded")
	count(p.Pending, "not delivered yet")
	count(p.Unknown, "with an outcome that nobody looked for")
	for _, s := range p.Skipped {
		count(s.Count, "skipped: "+s.Reason)
	}
	text := strings.Join(parts, ", ")
	if p.Stopped != "" {
		text += "; stopped: " + p.Stopped
	}
	return text
}

// add counts items of a state.
func (p *Progress) add(state, skipped string, n int64) {
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
	case "died":
		p.DiedAgain += n
	case "discarded":
		p.Discarded += n
	case "skipped":
		p.Skipped = append(p.Skipped, Skipped{skipped, n})
		slices.SortFunc(p.Skipped, func(a, b Skipped) int { return cmp.Compare(a.Reason, b.Reason) })
	}
}
