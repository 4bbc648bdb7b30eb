package journal

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Bounds of a [Watch].
const (
	// WatchSince is the age of the oldest change that is compared.
	WatchSince = 24 * time.Hour
	// watchRecords is about how many records a look reads, and watchExamples how many differences it names.
	watchRecords, watchExamples = 50_000, 5
	// watchTime is the time in which a look begins pages. The monitor ends a look after 10 seconds, and then nothing of it
	// counts.
	watchTime = 4 * time.Second
)

// State is what a [Watch] has found.
type State struct {
	// On is false while the journal is off.
	On bool
	// At is the database's time of the newest look, and Records is how many that read.
	At      time.Time
	Records int64
	// Found counts the differences of the last whole pass, or of the pass under way when it has found more. Examples are the
	// first differences of that pass.
	Found    int64
	Examples []Difference
}

// Watch compares the events that changed within WatchSince with their records, a part with each look. A look continues
// where the last one ended; after the last event a new pass begins with the first. It is not safe for concurrent use.
type Watch struct {
	db       DB
	o        Options
	pass     State // under way
	lastPass State
}

// NewWatch returns a Watch of the schema, namespace and topics of the options.
func NewWatch(db DB, o Options) *Watch {
	o.Since, o.Limit, o.MaxRecords, o.MaxTime = WatchSince, watchExamples, watchRecords, watchTime
	return &Watch{db: db, o: o}
}

// Look compares the next part. It fails when the database does.
func (w *Watch) Look(ctx context.Context) (State, error) {
	r, err := Check(ctx, w.db, w.o)
	switch {
	case errors.Is(err, ErrOff):
		w.o.From, w.pass, w.lastPass = uuid.Nil, State{}, State{}
		return State{}, nil
	case err != nil:
		return State{}, err
	}
	w.pass.Found += r.Found
	w.pass.Examples = append(w.pass.Examples, r.Differences...)
	w.pass.Examples = w.pass.Examples[:min(len(w.pass.Examples), watchExamples)]
	state := w.lastPass
	if w.pass.Found > state.Found {
		state = w.pass
	}
	w.o.From = r.Next
	if !r.Partial {
		state, w.lastPass, w.pass, w.o.From = w.pass, w.pass, State{}, uuid.Nil
	}
	state.On, state.At, state.Records = true, r.Until, r.Records
	return state, nil
}
