package status

import "time"

// Replay is how far a replay or a discard of dead letters is, by the words of replay.Progress: it reads the JSON of
// one, such as that in a termination message.
type Replay struct {
	// ID is the operation's, in outbox_replays. A dry run has that of zeros.
	ID string `json:"id"`
	// Matched is the size of the set, and the sum of the counts below.
	Matched int64 `json:"matched"`
	// Waiting have not had their turn; Pending were put back, and are neither delivered nor dead yet.
	Waiting   int64 `json:"waiting"`
	Pending   int64 `json:"pending"`
	Delivered int64 `json:"delivered"`
	DiedAgain int64 `json:"diedAgain"`
	Discarded int64 `json:"discarded"`
	// Skipped are left as they were, by the reason.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Unknown were put back, and retention removed the set before anybody looked for their outcomes.
	Unknown int64 `json:"unknown,omitempty"`
	// WaitingFor is what it waits for that is not of it, by the reason.
	WaitingFor []Wait `json:"waitingFor,omitempty"`
	// BeganAt is when the set was fixed, FinishedAt when the last outcome was known, on the database's clock.
	BeganAt    time.Time `json:"beganAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Stopped is why what waited was skipped, or empty.
	Stopped string `json:"stopped,omitempty"`
}

// Skipped is a number of letters that were left as they were.
type Skipped struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Wait is what items wait for that is not of the operation.
type Wait struct {
	// Reason is no_dispatcher, earlier_dead or earlier_live.
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
	// Event is a sample, by its id.
	Event string `json:"event"`
}

// Done are those that had their turn.
func (r Replay) Done() int64 { return r.Matched - r.Waiting }

// brief is the replay with bounded texts and lists.
func (r Replay) brief() *Replay {
	brief := r
	brief.ID, brief.Stopped, brief.Skipped = clip(r.ID, briefWord), clip(r.Stopped, briefMessage), nil
	brief.WaitingFor = nil
	for _, w := range r.WaitingFor[:min(len(r.WaitingFor), briefHeld)] {
		brief.WaitingFor = append(brief.WaitingFor, Wait{Reason: clip(w.Reason, briefReason), Count: w.Count, Event: clip(w.Event, briefWord)})
	}
	for _, s := range r.Skipped[:min(len(r.Skipped), briefHeld)] {
		brief.Skipped = append(brief.Skipped, Skipped{Reason: clip(s.Reason, briefReason), Count: s.Count})
	}
	return &brief
}
