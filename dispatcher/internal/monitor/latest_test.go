package monitor

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// depths is a store that counts how often it is asked.
type depths struct {
	dispatcher.Store
	asked  atomic.Int64
	mu     sync.Mutex
	err    error
	answer chan struct{} // nil, or what an answer waits for
}

func (d *depths) Depth(ctx context.Context, topics []string) (dispatcher.Depth, error) {
	d.mu.Lock()
	depth, err := dispatcher.Depth{BlockedKeys: dispatcher.Count{N: d.asked.Add(1)}}, d.err
	d.mu.Unlock()
	if len(topics) != 1 {
		err = errors.New("the wrong topics")
	}
	if d.answer != nil {
		select {
		case <-d.answer:
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

// watch returns a Backlog that may ask at every look, and its log.
func watch(t *testing.T, store *depths) (*Latest[dispatcher.Depth], *strings.Builder) {
	t.Helper()
	log := &strings.Builder{}
	b := NewBacklog(t.Context(), store, config.Config{Topics: []string{"a"}, OnDead: config.OnDeadBlock}, slog.New(slog.NewTextHandler(log, nil)))
	b.every, b.rest, b.patience = 0, -1, time.Minute
	return b, log
}

// The database is asked for those who look, and the last answer is kept while it is away.
//
// CONTRACT: C-96
func TestBacklogIsCountedForThoseWhoLook(t *testing.T) {
	store := &depths{err: errors.New("away")}
	b, log := watch(t, store)
	if store.asked.Load() != 0 {
		t.Error("counted before anybody looked")
	}
	for range 2 {
		if b.Get() != nil {
			t.Error("a count, and the database is away")
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings of one outage, want 1:\n%s", n, log)
	}
	store.fails(nil)
	if d := b.Get(); d == nil || d.BlockedKeys.N != 3 {
		t.Errorf("count %+v, want the third", d)
	}
	store.fails(errors.New("away again"))
	if d := b.Get(); d == nil || d.BlockedKeys.N != 3 {
		t.Errorf("count %+v, want the third still", d)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two outages:\n%s", n, log)
	}

	store.fails(nil)
	b.every = time.Hour
	b.Get()
	if n := store.asked.Load(); n != 4 {
		t.Errorf("asked %d times, want 4: the fifth look came too soon", n)
	}
}

// A key goes on after a death, unless it is told not to.
func TestKeysBlockOnlyWhereTheyMay(t *testing.T) {
	b := NewBacklog(t.Context(), &depths{}, config.Config{Topics: []string{"a"}, OnDead: config.OnDeadContinue}, slog.New(slog.DiscardHandler))
	b.patience = time.Minute
	if d := b.Get(); d == nil || d.BlockedKeys.N != 0 {
		t.Errorf("depth %+v, want no blocked keys", d)
	}
}

// Many who look at once are one question, and none of them waits for a database that hangs.
func TestLookingDoesNotHang(t *testing.T) {
	store := &depths{answer: make(chan struct{})}
	b, _ := watch(t, store)
	b.patience = time.Millisecond
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if b.Get() != nil {
				t.Error("an answer before there was one")
			}
		})
	}
	all.Wait()
	if n := store.asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	answered := b.refresh()
	close(store.answer)
	<-answered
	b.every, b.patience = time.Hour, time.Minute
	if d := b.Get(); d == nil || d.BlockedKeys.N != 1 {
		t.Errorf("count %+v, want the late one", d)
	}
}

// That nothing holds vacuum back is an answer too.
func TestNoOldestTransaction(t *testing.T) {
	var failure error
	o := NewOldestTransaction(t.Context(), func(context.Context) (*dispatcher.OldestTransaction, error) { return nil, failure }, slog.New(slog.DiscardHandler))
	o.every, o.rest, o.patience = 0, -1, time.Minute
	failure = errors.New("away")
	if got := o.Get(); got != nil {
		t.Errorf("an answer without the database: %+v", got)
	}
	failure = nil
	if got := o.Get(); got == nil || *got != (dispatcher.OldestTransaction{}) {
		t.Errorf("answer %+v, want one without a kind", got)
	}
}

// A question that takes long is asked less often: no more than a twentieth of the time goes to them.
// CONTRACT: C-96
func TestLongQuestionsAreRare(t *testing.T) {
	for took, want := range map[time.Duration]int{
		time.Millisecond:       1800, // every two seconds
		100 * time.Millisecond: 1800 * 20 / 21,
		2 * time.Second:        86, // every 42 seconds
		time.Minute:            51, // ends after 10 seconds, failed, and every 70 seconds
	} {
		t.Run(took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				l := newLatest(t.Context(), slog.New(slog.DiscardHandler), countEvery, func(ctx context.Context) (*int, error) {
					asked++
					select {
					case <-time.After(took):
					case <-ctx.Done():
					}
					return &asked, ctx.Err()
				})
				for end := time.Now().Add(time.Hour); time.Now().Before(end); <-time.After(time.Second / 20) {
					l.Get()
				}
				synctest.Wait()
				if asked < want*9/10 || asked > want*11/10 {
					t.Errorf("asked %d times in an hour, want about %d", asked, want)
				}
			})
		})
	}
}
