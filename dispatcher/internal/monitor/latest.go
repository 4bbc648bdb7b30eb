package monitor

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
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
// that is not read queries nothing but the backlog, each minute for [Hour]. The last result is kept while the database is unreachable.
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

const (
	// countEvery is the shortest time between two counts of the backlog. One reads 20,000 pages at most.
	countEvery = 2 * time.Second
	// oldestEvery is the shortest time between two queries for the oldest transaction: those that matter take minutes.
	oldestEvery = 30 * time.Second
	// shareEvery is the shortest time between two queries for other dispatchers of the same topics.
	shareEvery = 15 * time.Second
	// sizesEvery is the shortest time between two queries for the tables' size on disk.
	sizesEvery = time.Minute
)

// NewBacklog counts the rows that wait (CONTRACT C-96), and the keys that do so where dead events may block keys.
func NewBacklog(ctx context.Context, store dispatcher.Store, topics []string, blocks bool, log *slog.Logger) *Latest[dispatcher.Depth] {
	return newLatest(ctx, log.With("query", "backlog"), countEvery, func(ctx context.Context) (*dispatcher.Depth, error) {
		depth, err := store.Depth(ctx, topics)
		if !blocks {
			depth.BlockedKeys, depth.Blocked = dispatcher.Count{}, nil
		}
		return &depth, err
	})
}

// NewOldestTransaction looks for what holds vacuum back. The result has no Kind when nothing does.
func NewOldestTransaction(ctx context.Context, look func(context.Context) (*dispatcher.OldestTransaction, error), log *slog.Logger) *Latest[dispatcher.OldestTransaction] {
	return newLatest(ctx, log.With("query", "oldest transaction"), oldestEvery, func(ctx context.Context) (*dispatcher.OldestTransaction, error) {
		oldest, err := look(ctx)
		if oldest == nil {
			oldest = &dispatcher.OldestTransaction{}
		}
		return oldest, err
	})
}

// NewSharing looks for other dispatchers that deliver the same topics, and returns their names.
func NewSharing(ctx context.Context, query func(context.Context) ([]string, error), log *slog.Logger) *Latest[[]string] {
	return newLatest(ctx, log.With("query", "sharing"), shareEvery, func(ctx context.Context) (*[]string, error) {
		names, err := query(ctx)
		return &names, err
	})
}

// NewRetention reads the progress of the sweep that removes rows after their retention.
func NewRetention(ctx context.Context, query func(context.Context) (retention.State, error), log *slog.Logger) *Latest[retention.State] {
	return newLatest(ctx, log.With("query", "retention"), shareEvery, func(ctx context.Context) (*retention.State, error) {
		state, err := query(ctx)
		return &state, err
	})
}

// NewNotifications counts the dead letters of which the address of notify is not notified yet.
func NewNotifications(ctx context.Context, query func(context.Context) (notify.Waiting, error), log *slog.Logger) *Latest[notify.Waiting] {
	return newLatest(ctx, log.With("query", "notifications"), shareEvery, func(ctx context.Context) (*notify.Waiting, error) {
		waiting, err := query(ctx)
		return &waiting, err
	})
}

// NewSizes reads the tables' size on disk.
func NewSizes(ctx context.Context, query func(context.Context) (map[string]int64, error), log *slog.Logger) *Latest[map[string]int64] {
	return newLatest(ctx, log.With("query", "sizes"), sizesEvery, func(ctx context.Context) (*map[string]int64, error) {
		sizes, err := query(ctx)
		return &sizes, err
	})
}

// dataEvery is the shortest time between two queries of the outbox's data. The results change slowly: they cover minutes.
const dataEvery = 15 * time.Second

// NewData reads the state of the outbox's data (CONTRACT C-95).
func NewData(ctx context.Context, look func(context.Context) (dispatcher.Data, error), log *slog.Logger) *Latest[dispatcher.Data] {
	return newLatest(ctx, log.With("query", "data"), dataEvery, func(ctx context.Context) (*dispatcher.Data, error) {
		data, err := look(ctx)
		return &data, err
	})
}

// Data returns the reported part of the outbox's data.
func Data(d *dispatcher.Data) *status.Data {
	o := d.Orphans
	out := &status.Data{ObservedAt: d.ObservedAt, Unserved: o.Unserved.N, Abandoned: o.Abandoned.N, OrphansAtLeast: o.Unserved.Estimated || o.Abandoned.Estimated}
	for _, of := range d.Windows {
		w := status.Window{Window: of.Name(), Delivered: of.Delivered, Failed: of.Failed, Dead: of.Dead.N, DeadAtLeast: of.Dead.Estimated}
		if rate, known := of.SuccessRate(); known {
			w.SuccessRate = &rate
		}
		out.Windows = append(out.Windows, w)
	}
	for _, t := range o.Topics {
		out.OrphanTopics = append(out.OrphanTopics, status.OrphanTopic{Namespace: t.Namespace, Topic: t.Topic, Unserved: t.Unserved.N, Abandoned: t.Abandoned.N})
	}
	for _, rows := range d.Adoptions {
		if rows.N < 0 {
			rows.State = "uncounted"
		}
		if rows.N != 0 && rows.Namespace != "" { // else it may be another dispatcher's
			out.Adoptions = append(out.Adoptions, status.AdoptedRows{Adoption: rows.Adoption, State: rows.State, Rows: rows.N})
		}
	}
	return out
}

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

// Hour remembers the last hour by minute.
type Hour struct {
	mu   sync.Mutex
	hour *status.Hour
}

// Watch notes each minute until ctx ends. delivered is how many events the process has delivered, and backlog nil, or the last count,
// which is of no use when it is older than a minute.
func (h *Hour) Watch(ctx context.Context, delivered func() int64, backlog func() *dispatcher.Depth) {
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	counted, before := time.Time{}, delivered()
	for {
		select {
		case now := <-minute.C:
			pending, all := int64(-1), delivered()
			if depth := backlog(); depth != nil && !depth.ObservedAt.Equal(counted) {
				counted, pending = depth.ObservedAt, Backlog(depth).Pending
			}
			h.note(now, pending, all-before)
			before = all
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hour) note(now time.Time, pending, delivered int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := status.Hour{}
	if h.hour != nil {
		last = *h.hour
	}
	add := func(to []int64, n int64) []int64 { // a reader has the list of before
		return append(slices.Clone(to[max(0, len(to)-status.Minutes+1):]), n)
	}
	h.hour = &status.Hour{Until: status.At(now), Pending: add(last.Pending, pending), Delivered: add(last.Delivered, delivered)}
}

// Get returns it, nil in the first minute.
func (h *Hour) Get() *status.Hour {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hour
}
