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

// step is something that happened to an event.
type step struct {
	at         time.Time
	what, more string
}

// steps returns everything that is known of an event, the oldest first.
func steps(h deadletters.History) []step {
	var all []step
	if e := h.Event; e != nil {
		all = append(all, step{e.CreatedAt, "enqueued", "to topic " + e.Topic})
		all = append(all, failed(e.Failures)...)
	}
	for _, l := range slices.Backward(h.DeadLetters) {
		all = append(all, failed(l.Failures)...)
		all = append(all, step{l.DeadAt, "dead", fmt.Sprintf("dead letter %d, after %d attempts: %s, %s: %s", l.ID, l.Attempts, l.Reason, causeOf(l.Cause), l.Error)})
		if r := l.Resolution; r != nil {
			all = append(all, step{r.At, r.What, fmt.Sprintf("dead letter %d, %s", l.ID, by(*r))})
		}
	}
	if e := h.Event; e != nil {
		switch e.Status {
		case "delivered":
			all = append(all, step{e.UpdatedAt, "delivered", fmt.Sprintf("attempt %d, fencing token %d", e.Attempts, e.Lease)})
		case "processing":
			all = append(all, step{e.UpdatedAt, "claimed", fmt.Sprintf("attempt %d, by worker %s", e.Attempts, e.Worker)})
		}
	}
	for _, r := range h.Journal {
		all = append(all, step{r.At, "journal", recorded(r)})
	}
	slices.SortStableFunc(all, func(a, b step) int { return a.at.Compare(b.at) })
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

// failed returns the steps of failed attempts.
func failed(failures []deadletters.Failure) (out []step) {
	for _, f := range failures {
		out = append(out, step{f.At, "failed", fmt.Sprintf("attempt %d, %s: %s", f.Attempt, causeOf(f.Cause), f.Error)})
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

func writeSteps(out io.Writer, steps []step) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", stamp(s.at), s.what, Line(s.more))
	}
	return w.Flush()
}
