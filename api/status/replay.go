package status

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/google/uuid"
)

// Why an item of a [Replay] is skipped.
const (
	// SkippedClaimed: another operation has claimed or handled it first.
	SkippedClaimed = "claimed"
	// SkippedNotDead: a person changed it by hand. Its event is not dead, or the dead letter is not open.
	SkippedNotDead = "not_dead"
	// SkippedGone: its event's row is not there any more, before its turn or before it was delivered.
	SkippedGone = "gone"
	// SkippedStopped: the replay was stopped before its turn.
	SkippedStopped = "stopped"
)

// What a [Replay] waits for.
const (
	// WaitsForDelivery: a dispatcher delivers the event now.
	WaitsForDelivery = "delivering"
	// WaitsForDispatcher: no dispatcher has reported for a minute that it runs and serves the event's topic.
	WaitsForDispatcher = "no_dispatcher"
	// WaitsForResume: the dispatcher of the event's topic is paused.
	WaitsForResume = "paused"
	// WaitsForTopic: the dispatcher has paused the event's topic, since its destination fails or its next event is not admitted.
	WaitsForTopic = "topic_paused"
	// WaitsForDead: an earlier event of the key is dead and open, and the dispatcher has onDead Block.
	WaitsForDead = "earlier_dead"
	// WaitsForLive: an earlier event of the key is neither delivered nor dead, and the dispatcher has ordering Key.
	WaitsForLive = "earlier_live"
	// WaitsForReplay: another replay has earlier events of the topic.
	WaitsForReplay = "other_replay"
)

// Replay is the progress of a replay or a discard of dead letters. Its JSON is what the commands print, and that of
// [Replay.Final] the termination message of the process that runs it.
type Replay struct {
	// ID identifies it, in outbox_replays. A dry run has that of zeros.
	ID uuid.UUID `json:"id"`
	// Namespace, Action (replay, discard or reopen) and Rate, in events a second, are those of its request.
	Namespace string `json:"namespace,omitempty" brief:"-"`
	Action    string `json:"action,omitempty" brief:"-"`
	Rate      int    `json:"rate,omitempty" brief:"-"`
	Progress
	// Waiting counts the dead letters that have not had their turn.
	Waiting int64 `json:"waiting"`
	// LastError is the newest error of an event that was put back, or empty.
	LastError string `json:"lastError,omitempty" brief:"160"`
	// WaitingFor is what it waits for, by the reason, when no outcome is new.
	WaitingFor []Wait `json:"waitingFor,omitempty" brief:"3"`
}

// Progress is how far a replay is. Matched is the sum of the counts of its items, and of those that wait.
type Progress struct {
	// matched is the size of the set. Absent until it is fixed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Matched int64 `json:"matched"`

	// delivered counts the events that were put back, and are delivered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Delivered int64 `json:"delivered"`

	// deadAgain counts the events that were put back, and are dead again.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeadAgain int64 `json:"deadAgain"`

	// pending counts the events that were put back, and have no outcome yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int64 `json:"pending"`

	// failing counts the events that were put back, have failed, and are tried again.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Failing int64 `json:"failing"`

	// discarded counts the dead letters that are handled, and whose events stay dead.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Discarded int64 `json:"discarded"`

	// reopened counts the discarded dead letters that are open again.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Reopened int64 `json:"reopened"`

	// skipped counts the dead letters that were left as they were, by the reason; of a
	// dry run those that would be.
	// +optional
	// +listType=map
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=16
	Skipped []Skipped `json:"skipped,omitempty" brief:"8"`

	// startedAt is when the set was fixed, on the database's clock.
	// +optional
	StartedAt Time `json:"startedAt,omitzero"`

	// endsAt estimates when the last outcome is known, on the database's clock. Absent
	// when that is not known.
	// +optional
	EndsAt Time `json:"endsAt,omitzero"`

	// finishedAt is when the last outcome was known, on the database's clock; of a
	// dry run when its Job ended.
	// +optional
	FinishedAt Time `json:"finishedAt,omitzero"`

	// stopped is why what waited was given up. Absent when nothing was.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Stopped string `json:"stopped,omitempty" brief:"400"`
}

// Skipped is a number of dead letters that were left as they were.
type Skipped struct {
	// reason is claimed (another one has claimed or handled it), not_dead (a person
	// changed it by hand), gone (its row is not there any more) or stopped (before its
	// turn).
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason" brief:"24"`

	// count is how many there are.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`
}

// Wait is what events of a replay wait for.
type Wait struct {
	// Reason is one of the constants WaitsFor.
	Reason string `json:"reason" brief:"24"`
	// Count is how many wait for that, of the first 1000 that were put back; of other_replay, how many replays.
	Count int64 `json:"count"`
	// Event is the id of the first one that is waited for, or that waits; of other_replay, the id of the replay.
	Event string `json:"event"`
	// Detail is why the topic is paused, or empty.
	Detail string `json:"detail,omitempty" brief:"160"`
}

// Done is how many dead letters were put back, discarded or reopened.
func (p Progress) Done() int64 {
	return p.Pending + p.Failing + p.Delivered + p.DeadAgain + p.Discarded + p.Reopened
}

// Left is how many dead letters wait for their turn.
func (p Progress) Left() int64 {
	left := p.Matched - p.Done()
	for _, s := range p.Skipped {
		left -= s.Count
	}
	return left
}

// Outcomes are the counts in words, without those that are 0. verb is written before each outcome, and skipped is the format of a
// reason.
func (p Progress) Outcomes(verb, skipped string) (all []string) {
	count := func(n int64, outcome string) {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s%s", n, verb, outcome))
		}
	}
	count(p.Delivered, "delivered")
	count(p.DeadAgain, "dead again")
	count(p.Discarded, "discarded")
	count(p.Reopened, "reopened")
	count(p.Failing, "failing")
	count(p.Pending, "not delivered yet")
	for _, s := range p.Skipped {
		count(s.Count, fmt.Sprintf(skipped, s.Reason))
	}
	return all
}

// Line is the progress of an action, in lower case, in one line.
func (p Progress) Line(action string) string {
	text := fmt.Sprintf("%d of %d ", p.Done(), p.Matched)
	switch p.Discarded, p.Reopened = 0, 0; { // they are in text
	case action == "discard":
		text += "discarded"
	case action == "reopen":
		text += "reopened"
	case p.Delivered == 0:
		text += "put back, 0 delivered"
	default:
		text += "put back"
	}
	text = strings.Join(append([]string{text}, p.Outcomes("", "skipped: %s")...), ", ")
	if p.Stopped != "" {
		text = "stopped: " + text + "; " + p.Stopped
	}
	return text
}

// String is the progress in one line.
func (r Replay) String() string { return r.Line(r.Action) }

// Why says what is in the way, a sentence for each: why events fail, and what the others wait for.
func (r Replay) Why() (all []string) {
	if r.LastError != "" && r.Failing+r.DeadAgain > 0 {
		all = append(all, "the newest failure: "+r.LastError)
	}
	for _, wait := range r.WaitingFor {
		all = append(all, wait.String())
	}
	return all
}

// String is the wait in words.
func (w Wait) String() string {
	switch w.Reason {
	case WaitsForDelivery:
		return fmt.Sprintf("%d are being delivered, such as %s", w.Count, w.Event)
	case WaitsForResume:
		return fmt.Sprintf("%d wait, since the dispatcher is paused; resume it", w.Count)
	case WaitsForTopic:
		return fmt.Sprintf("%d wait, since the dispatcher has paused their topic: %s", w.Count, w.Detail)
	case WaitsForReplay:
		return fmt.Sprintf("what waits comes after earlier events of replay %s; stop that one, or wait", w.Event)
	case WaitsForDispatcher:
		return fmt.Sprintf("%d wait for a dispatcher that serves their topic, such as %s; start one", w.Count, w.Event)
	case WaitsForDead:
		return fmt.Sprintf("%d wait for an earlier event of their key that is dead, such as %s; replay or discard that", w.Count, w.Event)
	}
	return fmt.Sprintf("%d wait for an earlier event of their key that is not delivered yet, such as %s", w.Count, w.Event)
}

// Final is the replay with bounded texts, and without what it waits for: Kubernetes cuts a termination message at 4096 bytes,
// which its JSON does not reach where < > and & are written as they are.
func (r Replay) Final() Replay {
	final := r
	bound(reflect.ValueOf(&final).Elem(), 0, 0)
	final.Namespace, final.Action, final.Rate, final.WaitingFor = clip(r.Namespace, 200), clip(r.Action, briefText), r.Rate, nil
	return final
}
