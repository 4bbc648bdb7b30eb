package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// depths is a store that counts how often it is queried.
type depths struct {
	dispatcher.Store
	queries atomic.Int64
	mu      sync.Mutex
	err     error
	proceed chan struct{} // nil, or what a result waits for
}

func (d *depths) Depth(ctx context.Context, topics []string) (dispatcher.Depth, error) {
	d.mu.Lock()
	depth, err := dispatcher.Depth{BlockedKeys: dispatcher.Count{N: d.queries.Add(1)}}, d.err
	d.mu.Unlock()
	if len(topics) != 1 {
		err = errors.New("the wrong topics")
	}
	if d.proceed != nil {
		select {
		case <-d.proceed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return depth, err
}

func (d *depths) fails(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// watch returns a Backlog that may query at every look, and its log.
func watch(t *testing.T, store *depths) (*Latest[dispatcher.Depth], *strings.Builder) {
	t.Helper()
	log := &strings.Builder{}
	b := NewBacklog(t.Context(), store, []string{"a"}, true, slog.New(slog.NewTextHandler(log, nil)))
	b.every, b.cooldown, b.waitTimeout = 0, -1, time.Minute
	return b, log
}

// The database is queried for readers, and the last result is kept while it is unreachable.
//
// CONTRACT: C-96
func TestBacklogIsCountedWhenRead(t *testing.T) {
	store := &depths{err: errors.New("unreachable")}
	b, log := watch(t, store)
	need.Want(t, 0, "counted before anybody looked", store.queries.Load())
	for range 2 {
		need.That(t, b.Get() == nil, "a count, and the database is unreachable")
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings of one outage, want 1:\n%s", n, log)
	}
	store.fails(nil)
	if d := b.Get(); d == nil || d.BlockedKeys.N != 3 {
		t.Errorf("count %+v, want the third", d)
	}
	store.fails(errors.New("unreachable again"))
	if d := b.Get(); d == nil || d.BlockedKeys.N != 3 {
		t.Errorf("count %+v, want the third still", d)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two outages:\n%s", n, log)
	}

	store.fails(nil)
	b.every = time.Hour
	b.Get()
	need.Want(t, 4, "queried %d times, want 4: the fifth look came too soon", store.queries.Load())
}

// A key continues after a dead event, unless OnDead is Block.
func TestKeysBlockOnlyWhereTheyMay(t *testing.T) {
	b := NewBacklog(t.Context(), &depths{}, []string{"a"}, false, slog.New(slog.DiscardHandler))
	b.waitTimeout = time.Minute
	d := b.Get()
	need.That(t, d != nil && d.BlockedKeys.N == 0, "depth %+v, want no blocked keys", d)
}

// Many readers at once are one query, and none of them waits for a database that hangs.
func TestStatusDoesNotWaitForAHangingDatabase(t *testing.T) {
	store := &depths{proceed: make(chan struct{})}
	b, _ := watch(t, store)
	b.waitTimeout = time.Millisecond
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			need.That(t, b.Get() == nil, "a result before there was one")
		})
	}
	all.Wait()
	need.Want(t, 1, "queried %d times, want once", store.queries.Load())
	done := b.refresh()
	close(store.proceed)
	<-done
	b.every, b.waitTimeout = time.Hour, time.Minute
	d := b.Get()
	need.That(t, d != nil && d.BlockedKeys.N == 1, "count %+v, want the late one", d)
}

// A query that finds no transaction has a result, which is kept.
func TestNoOldestTransactionIsAResult(t *testing.T) {
	var failure error
	o := NewOldestTransaction(t.Context(), func(context.Context) (*dispatcher.OldestTransaction, error) { return nil, failure }, slog.New(slog.DiscardHandler))
	o.every, o.cooldown, o.waitTimeout = 0, -1, time.Minute
	failure = errors.New("unreachable")
	if got := o.Get(); got != nil {
		t.Errorf("a result without the database: %+v", got)
	}
	failure = nil
	if got := o.Get(); got == nil || *got != (dispatcher.OldestTransaction{}) {
		t.Errorf("result %+v, want one without a kind", got)
	}
}

// A query that takes long runs less often: no more than a twentieth of the time goes to them.
// CONTRACT: C-96
func TestLongQueriesAreRare(t *testing.T) {
	for took, want := range map[time.Duration]int{
		time.Millisecond:       600, // every two seconds
		100 * time.Millisecond: 600 * 20 / 21,
		2 * time.Second:        29, // every 42 seconds
		time.Minute:            17, // ends after 10 seconds, failed, and every 70 seconds
	} {
		t.Run(took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queries := 0
				l := newLatest(t.Context(), slog.New(slog.DiscardHandler), countEvery, func(ctx context.Context) (*int, error) {
					queries++
					select {
					case <-time.After(took):
					case <-ctx.Done():
					}
					return &queries, ctx.Err()
				})
				for end := time.Now().Add(20 * time.Minute); time.Now().Before(end); <-time.After(time.Second / 10) {
					l.Get()
				}
				synctest.Wait()
				need.That(t, queries >= want*9/10 && queries <= want*11/10, "queried %d times in 20 minutes, want about %d", queries, want)
			})
		})
	}
}

// The last hour has a number for each minute, sixty at most, and -1 where the backlog was not counted in it.
func TestHourHasANumberForEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Hour
		var delivered atomic.Int64
		delivered.Store(1000)
		var depth atomic.Pointer[dispatcher.Depth]
		go h.Watch(t.Context(), delivered.Load, depth.Load)
		minute := func(n int64) {
			synctest.Wait()
			delivered.Add(n)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		need.That(t, h.Get() == nil, "before the first minute it is %+v", h.Get())
		minute(7)
		depth.Store(&dispatcher.Depth{ObservedAt: time.Now(), Topics: []dispatcher.TopicDepth{{Pending: dispatcher.Count{N: 40}}, {Pending: dispatcher.Count{N: 2}}}})
		minute(0)
		minute(5) // the database is unreachable: the last count is kept
		got := h.Get()
		need.Want(t, "[-1 42 -1] [7 0 5]", "%s, want %s", fmt.Sprint(got.Pending, got.Delivered))
		need.Want(t, status.At(time.Now()), "until %v, want %v", got.Until)
		depth.Store(&dispatcher.Depth{ObservedAt: depth.Load().ObservedAt.Add(-time.Hour)}) // the database's clock is set back
		minute(1)
		need.Want(t, "[-1 42 -1 0]", "with another clock: %s, want %s", fmt.Sprint(h.Get().Pending))
		for n := range int64(70) {
			minute(n)
		}
		last := h.Get()
		need.That(t, len(last.Delivered) == 60 && len(last.Pending) == 60 && last.Delivered[0] == 10 && last.Delivered[59] == 69, "after 70 more it is %+v", last)
		need.That(t, len(got.Delivered) == 3, "what a reader has is now %+v", got)
	})
}
