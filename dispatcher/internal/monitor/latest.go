package monitor

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// askTimeout bounds a question to the database.
	askTimeout = 10 * time.Second
	// patience is how long those who look wait for an answer, before they get the one before it.
	patience = 500 * time.Millisecond
	// rest is how many times as long as a question took the database is left alone after it, so that
	// what is asked here takes no more than a twentieth of a session while the tables are large; and
	// restAtMost the longest of it, so that somebody who waits for the database sees it come back.
	rest       = 20
	restAtMost = time.Minute
)

// Latest is something that the database is asked for when somebody wants to see it, and not more
// often than every so often: a dispatcher that nobody looks at asks nothing. The last answer is kept
// while the database is away.
type Latest[T any] struct {
	ctx      context.Context // a question ends with it
	ask      func(context.Context) (*T, error)
	every    time.Duration
	rest     time.Duration // a multiple of how long the last question took
	patience time.Duration
	log      *slog.Logger

	mu      sync.Mutex
	answer  *T
	failed  bool
	askedAt time.Time
	took    time.Duration // the last question
	asking  chan struct{} // closed when the question under way has ended
}

func newLatest[T any](ctx context.Context, log *slog.Logger, every time.Duration, ask func(context.Context) (*T, error)) *Latest[T] {
	return &Latest[T]{ctx: ctx, ask: ask, every: every, rest: rest, patience: patience, log: log}
}

// Get returns the latest answer, nil before the first.
func (l *Latest[T]) Get() *T {
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	select {
	case <-l.refresh():
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answer
}

// refresh asks, unless that was done a moment ago. The channel is closed when the answer is there.
func (l *Latest[T]) refresh() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asking == nil {
		if time.Since(l.askedAt) < max(l.every, l.took+min(l.rest*l.took, restAtMost)) {
			return closed
		}
		l.asking, l.askedAt = make(chan struct{}), time.Now()
		go l.question(l.asking)
	}
	return l.asking
}

func (l *Latest[T]) question(done chan struct{}) {
	ctx, cancel := context.WithTimeout(l.ctx, askTimeout)
	defer cancel()
	answer, err := l.ask(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(done)
	l.asking, l.took = nil, time.Since(l.askedAt)
	switch {
	case err == nil:
		l.answer = answer
	case l.ctx.Err() == nil && !l.failed:
		l.log.Warn("the database could not be asked; keeping the last answer", "error", err)
	}
	l.failed = err != nil
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
