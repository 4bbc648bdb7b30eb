package dispatcher

import (
	"context"
	"sync"
	"time"
)

const (
	// A claim's rows should be delivered in no less time than shortSupply, so that claims are large, and
	// in no more than longSupply, so that no worker holds what another one could deliver.
	shortSupply = 100 * time.Millisecond
	longSupply  = 400 * time.Millisecond
	// firstClaim is the most rows of a claim before that is known.
	firstClaim = 100
)

// flight holds the rows that this process has claimed and not yet written back. A row is queued
// until a delivery takes it, and finished when its outcome waits for the completer. flight bounds
// them all, by number and by bytes, and hands them out topic by topic in turn.
type flight struct {
	concurrency int   // the most deliveries at once
	calls       int   // rows that these take
	batch       int   // the most rows of a claim
	maxRows     int   // beyond it nothing is claimed
	maxBytes    int64 // likewise
	lease       time.Duration
	onDead      OnDead          // with order per key
	base        context.Context // of deliveries: carries values, and never ends
	changed     func()          // tells the claim loop that what it waits for has come
	inDoubt     chan struct{}   // tells the keeper that a row's lease must be asked for

	mu      sync.Mutex
	work    sync.Cond         // deliveries wait here for rows
	queues  map[string]*queue // by topic
	turns   []*queue          // those with queued rows, the one that was served last at the end
	alone   bool              // there is only one topic
	running int               // deliveries
	held    []*row            // queued, waiting in line or in delivery: their leases are kept. In no order; see hold
	rows    int
	bytes   int64
	closed  bool
	keys    keys        // which rows wait for others of their key; nil without order
	behind  bool        // rows in the outbox wait for rows in here
	awaits  func() bool // what the claim loop waits for; nil for nothing
	want    int         // rows of the next claim
	full    time.Time   // when a claim brought so many, if the last one did
}

// row is a claimed event on its way through the engine.
type row struct {
	event *Event
	// age is how old the event was when it was claimed, on the database's clock, and claimedAt is when
	// that claim was sent, on ours.
	age       time.Duration
	claimedAt time.Time
	// Guarded by flight.mu. safeUntil is when this worker must no longer rely on the lease.
	safeUntil time.Time
	delivery  *delivery // nil while queued
	lost      bool      // another worker holds it
	line      *line     // of its key, nil without order; guarded by flight.mu
	queue     *queue    // of its topic, once it is held
	place     int       // in flight.held, from 1; 0 when it is not there
}

// ageAt is how long after its creation an event was somewhere.
func (r *row) ageAt(now time.Time) time.Duration { return r.age + now.Sub(r.claimedAt) }

// delivery is a running call of Sink.Deliver. Its memory is used again for the next one, and so is its
// context: to make one costs a quarter of what the engine does for an event.
type delivery struct {
	ctx       context.Context
	cut       context.CancelCauseFunc
	served    int // calls that the context was for
	queue     *queue
	rows      []*row
	began     time.Time
	ours      []bool // which rows may be written back; set by finish
	results   []result
	abandoned bool // the drain has given up waiting for it; guarded by flight.mu
}

// contextServes is how many calls have one context, at most: what a sink left behind ends with it.
const contextServes = 100

// renew makes sure of a context that may be used.
func (d *delivery) renew(base context.Context) {
	if d.served < contextServes && d.ctx != nil && d.ctx.Err() == nil {
		d.served++
		return
	}
	d.end()
	d.ctx, d.cut = context.WithCancelCause(base)
	d.served = 1
}

// end ends the context.
func (d *delivery) end() {
	if d.cut != nil {
		d.cut(nil)
	}
}

func newFlight(base context.Context, cfg Config, sinkBatch int, changed func()) *flight {
	f := &flight{
		concurrency: cfg.Concurrency,
		calls:       cfg.Concurrency * sinkBatch,
		batch:       cfg.BatchSize,
		maxRows:     cfg.Concurrency*sinkBatch + 3*cfg.BatchSize,
		maxBytes:    cfg.MaxBytes,
		lease:       cfg.Lease,
		onDead:      cfg.OnDead,
		base:        base,
		changed:     changed,
		inDoubt:     make(chan struct{}, 1),
		queues:      map[string]*queue{},
		keys:        newKeys(cfg.Ordering),
		alone:       len(cfg.Topics) == 1,
	}
	f.want = min(f.batch, max(f.calls, firstClaim))
	f.work.L = &f.mu
	return f
}

// room reports whether a claim may be made, and for how many rows and bytes: the queue runs low, so that
// deliveries never wait for a claim, and neither write-backs nor bytes have piled up. When there is
// no room, changed is called as soon as there is; ask again after longSupply, since topics may be slow by
// then. One claim of several topics takes half of the bytes at most: they may all be of one.
func (f *flight) room() (rows int, bytes int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.review(now)
	ok = f.await(func() bool {
		return f.short() && f.rows <= f.maxRows && f.bytes < f.maxBytes
	})
	if ok {
		f.adapt(now)
	}
	bytes = f.maxBytes - f.bytes
	if !f.alone {
		bytes = max(1, bytes/2)
	}
	return f.want, bytes, ok
}

// low is how many queued rows are few: half a claim, or all of one when the deliveries are as fast as that.
func (f *flight) low() int {
	if f.want == f.batch {
		return f.want
	}
	return f.want / 2
}

// adapt makes claims follow the deliveries: a full claim whose rows were soon gone is followed by a
// larger one, up to the batch size, and one that lasted for long by a smaller one, down to what the
// deliveries take at once.
func (f *flight) adapt(now time.Time) {
	if f.full.IsZero() {
		return
	}
	switch lasted := now.Sub(f.full); {
	case lasted < shortSupply:
		f.want = min(2*f.want, f.batch)
	case lasted > longSupply:
		f.want = max(f.want/2, min(f.calls, f.batch))
	}
	f.full = time.Time{}
}

// empty reports whether every row is written back. If not, changed is called as soon as it is so.
func (f *flight) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.await(func() bool { return f.rows == 0 })
}

// await reports whether cond holds, or remembers that the claim loop waits for it.
func (f *flight) await(cond func() bool) bool {
	f.awaits = nil
	if cond() {
		return true
	}
	f.awaits = cond
	return false
}

// notice tells the claim loop, once, that what it waits for has come.
func (f *flight) notice() {
	if f.awaits != nil && f.awaits() {
		f.awaits = nil
		f.changed()
	}
}

// add queues the events of a claim that was sent at started. Once the flight is closed it returns
// them instead: they must be released.
func (f *flight) add(claimed Claimed, started time.Time) (refused []*row) {
	rows := make([]row, len(claimed.Events))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows += len(rows)
	if len(rows) >= f.want {
		f.full = time.Now()
	}
	safeUntil := f.safeUntil(started)
	var q *queue // of the last row: those of a topic come together
	for i, e := range claimed.Events {
		r := &rows[i]
		*r = row{event: e, age: claimed.At.Sub(e.CreatedAt), claimedAt: started, safeUntil: safeUntil}
		f.bytes += int64(len(e.Payload))
		if f.closed {
			refused = append(refused, r)
			continue
		}
		if q == nil || q.topic != e.Topic {
			q = f.queueOf(e.Topic)
		}
		f.hold(r, q)
		if f.keys.join(r) {
			f.enqueue(r)
		}
	}
	f.behind = claimed.Behind
	return refused
}

// take waits for queued rows and begins a delivery of up to n rows of one topic. It returns false when
// the flight is closed. Rows are not begun while their lease is in doubt (CONTRACT C-31): they wait
// until the keeper has extended it, or found it lost.
func (f *flight) take(d *delivery, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.closed {
		if f.begin(d, n, time.Now()) {
			f.notice()
			return true
		}
		d.end()
		f.work.Wait()
	}
	d.end()
	return false
}

// finish ends a delivery with these answers, and says in ours which of its rows may be written back: none
// of an abandoned delivery, and not those that were lost (CONTRACT C-23). The others stay in flight until
// written. A row that succeeded lets the next one of its key go; behind are those that must not go
// before one that did not: they must be released (CONTRACT C-50).
func (f *flight) finish(d *delivery, errs []error) (behind []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(d)
	d.ours = d.ours[:0]
	for i, r := range d.rows {
		ours := !d.abandoned && !r.lost
		d.ours = append(d.ours, ours)
		if ours {
			f.unhold(r)
		}
		if !ours || errs[i] != nil {
			behind = append(behind, f.keys.leave(r)...)
		} else if next := f.keys.next(r); next != nil {
			f.enqueue(next)
		}
	}
	f.unholdAll(behind)
	return behind
}

// written forgets finished rows: their outcome is in the database, or is another worker's affair.
func (f *flight) written(rows []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(rows)
}

func (f *flight) forget(rows []*row) {
	for _, r := range rows {
		f.rows--
		f.bytes -= int64(len(r.event.Payload))
	}
	if f.behind && len(rows) > 0 {
		f.behind = false
		f.changed()
	}
	f.notice()
}

// close ends handing out, and returns the rows whose delivery has not begun.
func (f *flight) close() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.work.Broadcast()
	return f.emptyQueues()
}

// cutAll cancels the running deliveries.
func (f *flight) cutAll(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.held {
		if r.delivery != nil {
			r.delivery.cut(cause)
		}
	}
}

// abandon gives up on the deliveries that still run, and returns their rows.
func (f *flight) abandon() (rows []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.held {
		if r.delivery != nil && !r.lost {
			r.delivery.abandoned = true
			rows = append(rows, r)
		}
	}
	for _, r := range f.held {
		r.place = 0
	}
	f.held = nil
	return rows
}

func (f *flight) size() (rows int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows, f.bytes
}
