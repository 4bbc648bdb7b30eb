package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Why an item of a [Replay] is skipped.
const (
	// SkippedResolved: it was replayed or discarded otherwise meanwhile, or retention removed it.
	SkippedResolved = "already_resolved"
	// SkippedNotDead: its event is not dead any more.
	SkippedNotDead = "not_dead"
	// SkippedGone: its event is not there any more.
	SkippedGone = "gone"
	// SkippedEarlierDead: an earlier event of its key is dead again.
	SkippedEarlierDead = "earlier_dead"
	// SkippedStopped: the replay was stopped before its turn.
	SkippedStopped = "stopped"
)

// What a [Replay] waits for outside of its set.
const (
	// WaitsForDispatcher: no dispatcher has reported for a minute that it runs and serves the event's topic.
	WaitsForDispatcher = "no_dispatcher"
	// WaitsForDead: an earlier event of the key is dead and not of the set, and the dispatcher has onDead Block.
	WaitsForDead = "earlier_dead"
	// WaitsForLive: an earlier event of the key is neither delivered nor dead, and not of the set.
	WaitsForLive = "earlier_live"
)

// Replay is the progress of a replay or a discard of dead letters. Its JSON is what the commands print, and the
// termination message of the process that runs it.
type Replay struct {
	// ID identifies it, in outbox_replays. A dry run has that of zeros.
	ID uuid.UUID `json:"id"`
	// Namespace, Action (replay or discard) and Rate, in events a second, are those of its request. A brief Status has
	// none of them.
	Namespace string `json:"namespace,omitempty"`
	Action    string `json:"action,omitempty"`
	Rate      int    `json:"rate,omitempty"`
	// Matched is the size of the set, and the sum of the counts below.
	Matched int64 `json:"matched"`
	// Waiting counts the items that have not had their turn.
	Waiting int64 `json:"waiting"`
	// Pending counts the events that were put back, and are neither delivered nor dead yet.
	Pending int64 `json:"pending"`
	// Delivered counts the events that were put back, and are delivered.
	Delivered int64 `json:"delivered"`
	// DeadAgain counts the events that were put back, and are dead again.
	DeadAgain int64 `json:"deadAgain"`
	// Discarded counts the dead letters that are handled, and whose events stay dead.
	Discarded int64 `json:"discarded"`
	// Skipped counts the dead letters that were left as they were, by the reason, in the order of the reasons.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Unknown counts the events that were put back, and whose set retention removed before their outcomes were read.
	Unknown int64 `json:"unknown,omitempty"`
	// WaitingFor is what it waits for outside of its set, by the reason, when no outcome is new.
	WaitingFor []Wait `json:"waitingFor,omitempty"`
	// BeganAt is when the set was fixed, on the database's clock. Zero for a dry run.
	BeganAt time.Time `json:"beganAt,omitzero"`
	// FinishedAt is when the last outcome was known, on the database's clock. Zero before.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Stopped is why what waited was skipped, or empty.
	Stopped string `json:"stopped,omitempty"`
}

// Skipped is a number of dead letters that were left as they were.
type Skipped struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Wait is what items wait for outside of the replay's set.
type Wait struct {
	// Reason is one of WaitsForDispatcher, WaitsForDead and WaitsForLive.
	Reason string `json:"reason"`
	// Count is how many wait for that, of the first 1000 that were put back, and of the first 1000 that wait.
	Count int64 `json:"count"`
	// Event is the id of one of those that are waited for; with no_dispatcher, of one that waits.
	Event string `json:"event"`
}

// Done is how many items had their turn.
func (r Replay) Done() int64 { return r.Matched - r.Waiting }

// String is the progress in one line.
func (r Replay) String() string {
	parts := []string{fmt.Sprintf("%d of %d done", r.Done(), r.Matched)}
	count := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	count(r.Delivered, "delivered")
	count(r.DeadAgain, "dead again")
	count(r.Discarded, "discarded")
	count(r.Pending, "not delivered yet")
	count(r.Unknown, "with an unknown outcome")
	for _, s := range r.Skipped {
		count(s.Count, "skipped: "+s.Reason)
	}
	text := strings.Join(parts, ", ")
	if r.Stopped != "" {
		text += "; stopped: " + r.Stopped
	}
	return text
}

// String is the wait in words.
func (w Wait) String() string {
	switch w.Reason {
	case WaitsForDispatcher:
		return fmt.Sprintf("%d wait for a dispatcher that serves their topic, such as %s; start one", w.Count, w.Event)
	case WaitsForDead:
		return fmt.Sprintf("%d wait for an earlier event of their key that is dead, such as %s; replay or discard that", w.Count, w.Event)
	}
	return fmt.Sprintf("%d wait for an earlier event of their key that is not delivered yet, such as %s", w.Count, w.Event)
}

// brief is the replay with bounded texts and lists.
func (r Replay) brief() *Replay {
	brief := r
	brief.Namespace, brief.Action, brief.Rate = "", "", 0
	brief.Stopped, brief.Skipped, brief.WaitingFor = clip(r.Stopped, briefMessage), nil, nil
	for _, w := range r.WaitingFor[:min(len(r.WaitingFor), briefPausedTopics)] {
		brief.WaitingFor = append(brief.WaitingFor, Wait{Reason: clip(w.Reason, briefReason), Count: w.Count, Event: clip(w.Event, briefWord)})
	}
	for _, s := range r.Skipped[:min(len(r.Skipped), briefPausedTopics)] {
		brief.Skipped = append(brief.Skipped, Skipped{Reason: clip(s.Reason, briefReason), Count: s.Count})
	}
	return &brief
}
