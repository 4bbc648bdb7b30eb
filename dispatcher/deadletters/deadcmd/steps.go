package deadcmd

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Step is something that happened to an event.
type Step struct {
	At         time.Time
	What, More string
}

// Steps returns everything that is known of an event, the oldest first.
func Steps(h deadletters.History) []Step {
	var all []Step
	if e := h.Event; e != nil {
		all = append(all, Step{e.CreatedAt, "enqueued", "to topic " + e.Topic})
		all = append(all, Failed(e.Failures)...)
	}
	for _, l := range slices.Backward(h.DeadLetters) {
		all = append(all, Failed(l.Failures)...)
		all = append(all, Step{l.DeadAt, "dead", fmt.Sprintf("dead letter %d, after %d attempts: %s, %s: %s", l.ID, l.Attempts, l.Reason, CauseOf(l.Cause), l.Error)})
		if r := l.Resolution; r != nil {
			all = append(all, Step{r.At, r.What, fmt.Sprintf("dead letter %d, %s", l.ID, by(*r))})
		}
	}
	if e := h.Event; e != nil {
		switch e.Status {
		case "delivered":
			all = append(all, Step{e.UpdatedAt, "delivered", fmt.Sprintf("attempt %d, fencing token %d", e.Attempts, e.Lease)})
		case "withdrawn":
			all = append(all, Step{e.UpdatedAt, "withdrawn", "by its producer, so it is never sent"})
		case "expired":
			all = append(all, Step{e.UpdatedAt, "expired", fmt.Sprintf("its time was over at its claim, after %d attempts", e.Attempts)})
		case "processing":
			all = append(all, Step{e.UpdatedAt, "claimed", fmt.Sprintf("attempt %d, by worker %s", e.Attempts, e.Worker)})
		}
	}
	for _, r := range h.Journal {
		all = append(all, Step{r.At, "journal", recorded(r)})
	}
	slices.SortStableFunc(all, func(a, b Step) int { return a.At.Compare(b.At) })
	return slices.Compact(all) // a failure is in the row and in its dead letter
}

// recorded describes a record of the journal. One of a dead letter has no status.
func recorded(r deadletters.Record) string {
	text := r.Operation
	if r.Before+r.After != "" {
		text += fmt.Sprintf(": %s -> %s, attempts %d, token %d", cmp.Or(r.Before, "none"), cmp.Or(r.After, "gone"), r.Attempts, r.Lease)
	}
	if r.Reason != "" {
		text += ", " + r.Reason
	}
	if r.Worker != "" {
		text += ", worker " + r.Worker
	}
	return text + fmt.Sprintf(", login %s, transaction %s, LSN %s", r.Login, r.Transaction, r.LSN)
}

// Failed returns the steps of failed attempts.
func Failed(failures []deadletters.Failure) (out []Step) {
	for _, f := range failures {
		out = append(out, Step{f.At, "failed", fmt.Sprintf("attempt %d, %s: %s", f.Attempt, CauseOf(f.Cause), f.Error)})
	}
	return out
}

// by names who resolved it, and why.
func by(r deadletters.Resolution) string {
	text := "by " + r.By
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

func writeSteps(out io.Writer, steps []Step) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", stamp(s.At), s.What, Line(s.More))
	}
	return w.Flush()
}
