package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// wakeEvery is the time between two notifications of a busy process. One costs 50 µs of CPU time, half
	// of it in the database, so the busiest producer spends a twentieth of a core on them. More would gain
	// little: a dispatcher itself looks every 2 ms while events flow. After a quiet time of that length two
	// may follow each other at once: of events at random times, many come in pairs.
	wakeEvery = time.Millisecond
	// wakeTimeout bounds a notification.
	wakeTimeout = 5 * time.Second
	// wakeRetry is the time between two notifications while they fail.
	wakeRetry = time.Second
)

// WakerOptions say how a [Waker] works. The zero value of a field means its default.
type WakerOptions struct {
	// Schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	Schema string
	// OnError gets the errors of notifications that failed, at most one a second. Defaults to a warning to
	// slog.Default().
	OnError func(error)
}

// Waker notifies dispatchers, after a commit, that there is work, so that they need not wait for their
// next look. It is for producers whose events must arrive within a millisecond or two, also after a
// quiet time: a dispatcher alone looks every 2 ms while events flow, and at least at its poll interval.
//
//	err := tx.Commit(ctx)
//	...
//	waker.Wake("shop")
//
// A wake-up is a hint. It is never part of the producer's transaction: PostgreSQL lets transactions
// that notify commit one after the other, which costs concurrent producers most of their throughput.
// If it is lost, the dispatcher's poll finds the events. Only dispatchers with wakeUp set to Listen
// hear it. A dispatcher in the same process needs no Waker: call its Wake.
//
// Other languages send the same with `select pg_notify('outbox', 'shop')`, the schema and the
// namespace, in a transaction of its own.
type Waker struct {
	schema  string
	onError func(error)
	notify  func(ctx context.Context, schema, namespace string) error

	mu      sync.Mutex
	pending map[string]struct{} // namespaces that the next notification names
	sending bool
	rested  time.Time // until when the notifications so far are to last
}

// NewWaker returns a Waker that sends through db: a *pgxpool.Pool, of which it takes a connection for
// each notification. It starts nothing and needs no closing.
func NewWaker(db PGX, o WakerOptions) *Waker {
	return buildWaker(o, func(ctx context.Context, schema, namespace string) error {
		rows, err := db.Query(ctx, wakeSQL, schema, namespace)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	})
}

// NewSQLWaker returns a Waker that sends through db: a *sql.DB, with any PostgreSQL driver.
func NewSQLWaker(db SQL, o WakerOptions) *Waker {
	return buildWaker(o, func(ctx context.Context, schema, namespace string) error {
		rows, err := db.QueryContext(ctx, wakeSQL, schema, namespace)
		if err != nil {
			return err
		}
		return errors.Join(rows.Close(), rows.Err())
	})
}

// wakeSQL does not wait for the disk: a notification is not kept there.
const wakeSQL = `select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`

func buildWaker(o WakerOptions, notify func(ctx context.Context, schema, namespace string) error) *Waker {
	if o.Schema == "" {
		o.Schema = "outbox"
	}
	if o.OnError == nil {
		o.OnError = func(err error) {
			slog.Warn("dispatchers cannot be woken; they find the events at their next poll", "error", err)
		}
	}
	return &Waker{schema: o.Schema, onError: o.OnError, notify: notify, pending: map[string]struct{}{}}
}

// Wake notifies the dispatchers of the namespace that there is work. Call it after the commit. It returns
// at once, and may be called as often as you like: the first two calls of a millisecond notify at once, and
// those that follow do so together, with at most one notification of a namespace a millisecond.
func (w *Waker) Wake(namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[namespace] = struct{}{}
	if !w.sending {
		w.sending = true
		go w.send()
	}
}

// send notifies until nothing is pending, and rests in between.
func (w *Waker) send() {
	for namespaces := w.take(); len(namespaces) > 0; namespaces = w.take() {
		rest := time.NewTimer(w.cooldown(time.Now()))
		for _, namespace := range namespaces {
			if err := w.sendOne(namespace); err != nil {
				w.onError(fmt.Errorf("notify channel %q: %w", w.schema, err))
				rest.Reset(wakeRetry)
				break
			}
		}
		<-rest.C
	}
}

// rest returns how long to wait after a notification at this time.
func (w *Waker) cooldown(now time.Time) time.Duration {
	if earliest := now.Add(-wakeEvery); w.rested.Before(earliest) {
		w.rested = earliest
	}
	w.rested = w.rested.Add(wakeEvery)
	return w.rested.Sub(now)
}

// take returns what is pending. When that is nothing, the next Wake sends.
func (w *Waker) take() (namespaces []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	namespaces = slices.Collect(maps.Keys(w.pending))
	clear(w.pending)
	w.sending = len(namespaces) > 0
	return namespaces
}

func (w *Waker) sendOne(namespace string) error {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTimeout)
	defer cancel()
	return w.notify(ctx, w.schema, namespace)
}
