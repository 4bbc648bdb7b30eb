package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
)

// journalEvery is the shortest time between two looks at the journal.
const journalEvery = time.Minute

// NewJournal compares the journal with the rows, a part with each look (CONTRACT C-61).
func NewJournal(ctx context.Context, look func(context.Context) (journal.State, error), log *slog.Logger) *Latest[journal.State] {
	return newLatest(ctx, log.With("query", "journal"), journalEvery, func(ctx context.Context) (*journal.State, error) {
		state, err := look(ctx)
		return &state, err
	})
}

// compared is the reported part of a look at the journal. It is nil while the journal is off.
func compared(s *journal.State) *status.Journal {
	if !s.On {
		return nil
	}
	out := &status.Journal{ObservedAt: s.At, Records: s.Records, Differences: s.Found}
	for _, d := range s.Examples {
		out.Examples = append(out.Examples, line(string(d.Kind)+" of event "+d.Event+": "+d.What))
	}
	return out
}
