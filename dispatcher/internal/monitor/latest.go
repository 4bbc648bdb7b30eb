package monitor

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// queryTimeout bounds a query.
	queryTimeout = 10 * time.Second
	// waitTimeout is how long Get waits for a new result, before it returns the last one. A /status reads seven, and the
	// operator waits 2 seconds for it.
	waitTimeout = 250 * time.Millisecond
	// cooldown is the minimum wait after a query, as a multiple of the time that the query took: so queries take no
	// more than a twentieth of a session while the tables are large. maxCooldown bounds it, so that a reader sees
	// the database recover.
	cooldown    = 20
	maxCooldown = time.Minute
)

// Latest is the result of a query that runs when it is read, and not more often than every so often: a dispatcher
// that is not read queries nothing. The last result is kept while the database is unreachable.
type Latest[T any] struct {
	ctx         context.Context // a query ends with it
	query       func(context.Context) (*T, error)
	every       time.Duration
	cooldown    time.Duration // a multiple of how long the last query took
	waitTimeout time.Duration
	log         *slog.Logger

	mu       sync.Mutex
	result   *T
	failed   bool
	queryAt  time.Time
	took     time.Duration // the last query
	querying chan struct{} // closed when the running query has ended
}

func newLatest[T any](ctx context.Context, log *slog.Logger, every time.Duration, query func(context.Context) (*T, error)) *Latest[T] {
	return &Latest[T]{ctx: ctx, query: query, every: every, cooldown: cooldown, waitTimeout: waitTimeout, log: log}
}

// Get returns the latest result, nil before the first.
func (l *Latest[T]) Get() *T {
	timer := time.NewTimer(l.waitTimeout)
	defer timer.Stop()
	select {
	case <-l.refresh():
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result
}

// refresh runs the query, unless that was done a moment ago. The channel is closed when the result is there.
func (l *Latest[T]) refresh() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.querying == nil {
		if time.Since(l.queryAt) < max(l.every, l.took+min(l.cooldown*l.took, maxCooldown)) {
			return closed
		}
		l.querying, l.queryAt = make(chan struct{}), time.Now()
		go l.run(l.querying)
	}
	return l.querying
}

func (l *Latest[T]) run(done chan struct{}) {
	ctx, cancel := context.WithTimeout(l.ctx, queryTimeout)
	defer cancel()
	result, err := l.query(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(done)
	l.querying, l.took = nil, time.Since(l.queryAt)
	switch {
	case err == nil:
		l.result = result
	case l.ctx.Err() == nil && !l.failed:
		l.log.Warn("the database could not be queried; keeping the last result", "error", err)
	}
	l.failed = err != nil
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
