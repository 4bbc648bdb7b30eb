package engine

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
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
	sinkBatch   int   // the most rows of one of them
	calls       int   // rows that all of them take
	batch       int   // the most rows of a claim
	maxRows     int   // beyond it nothing is claimed
	maxBytes    int64 // likewise
	lease       time.Duration
	onDead      dispatcher.OnDead // with order per key
	base        context.Context   // of deliveries: carries values, and never ends
	changed     func()            // tells the claim loop that what it waits for has come
	inDoubt     chan struct{}     // tells the keeper that a row's lease must be asked for
	// mostOf says how many rows the next delivery of an event may have, 0 for any number; nil for all.
	mostOf func(uuid.UUID) int

	mu      sync.Mutex
	work    sync.Cond         // deliveries wait here for rows
	queues  map[string]*queue // by topic
	turns   []*queue          // those with queued rows, the one that was served last at the end
	alone   bool              // there is only one topic
	running int               // deliveries
	active  map[*delivery]bool
	held    []*row // queued, waiting in line or in delivery: their leases are kept. In no order; see hold
	rows    int
	bytes   int64
	closed  bool
	paused  bool              // claimed rows are refused
	admits  func(string) bool // says whether events of a type are delivered; nil for all
	keys    keys              // which rows wait for others of their key; nil without order
	behind  bool              // rows in the outbox wait for rows in here
	writes  int               // how often rows were written back
	awaits  func() bool       // what the claim loop waits for; nil for nothing
	want    int               // rows of the next claim
	most    int64             // and its bytes
	full    time.Time         // when a claim brought so many, if the last one did
}

// row is a claimed event on its way through the engine.
type row struct {
	event *dispatcher.Event
	// age is how old the event was when it was claimed, on the database's clock, and claimedAt is when
	// that claim was sent, on ours.
	age       time.Duration
	claimedAt time.Time
	bytes     int64 // what the event takes
	most      int   // rows of its delivery; 0 for any number
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
	ctx     context.Context
	cut     context.CancelCauseFunc
	served  int // calls that the context was for
	queue   *queue
	rows    []*row
	began   time.Time
	ours    []bool // which rows may be written back; set by finish
	results []result
	// Guarded by flight.mu. overdue says that its time is over and it was told so, and abandoned that nobody
	// waits for it any more: its rows are written back as failed. stuck is such a call while the process
	// goes on, and pinned are the bytes that it keeps.
	overdue, abandoned, stuck bool
	pinned                    int64
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

func newFlight(base context.Context, cfg dispatcher.Config, sinkBatch int, changed func()) *flight {
	f := &flight{
		concurrency: cfg.Concurrency,
		sinkBatch:   sinkBatch,
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
		active:      map[*delivery]bool{},
		most:        cfg.MaxBytes,
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
	bytes = min(f.maxBytes-f.bytes, f.most)
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

// shrink halves the next claim: the last one took too long (CONTRACT C-35). grow undoes that with each one
// that does not; adapt makes the rows more again.
func (f *flight) shrink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.want, f.most = max(1, f.want/2), max(1, min(f.most, f.maxBytes-f.bytes)/2)
}

func (f *flight) grow() { f.most = min(2*f.most, f.maxBytes) }

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

// rowBytes is what an event takes beside its payload and headers.
const rowBytes = 512

// sizeOf is what an event takes.
func sizeOf(e *dispatcher.Event) int64 {
	n := rowBytes + len(e.Payload)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return int64(n)
}

// newRow takes a claimed event into the account.
func (f *flight) newRow(e *dispatcher.Event, at, started time.Time) *row {
	r := &row{event: e, age: at.Sub(e.CreatedAt), claimedAt: started, safeUntil: f.safeUntil(started), bytes: sizeOf(e)}
	if f.mostOf != nil {
		r.most = f.mostOf(e.ID)
	}
	f.rows++
	f.bytes += r.bytes
	return r
}

// writeCount is a number that changes when rows are written back.
func (f *flight) writeCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// add queues the events of a claim that was sent at started, when writeCount was writes. It returns the rows
// that must be released: all of them once the flight is closed or paused, those behind an unreadable one of their
// key, and those of a topic from the first event on whose type is not admitted. unreadable are the rows of
// claimed.Unreadable, and stops the types of those first events, by topic.
func (f *flight) add(claimed dispatcher.Claimed, started time.Time, writes int) (refused, unreadable []*row, stops map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grow()
	if claimed.Leased() >= f.want {
		f.full = time.Now()
	}
	for _, u := range claimed.Unreadable {
		unreadable = append(unreadable, f.newRow(u.Event, claimed.At, started))
	}
	var q *queue // of the last row: those of a topic come together
	for _, e := range claimed.Events {
		r := f.newRow(e, claimed.At, started)
		if f.admits != nil && f.stops(e, &stops) || f.closed || f.paused || f.keys.behind(e, claimed.Unreadable) {
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
	if f.behind = claimed.Behind; f.behind && f.writes != writes {
		f.behind = false // what they wait for was written while the claim was under way
		f.changed()
	}
	return refused, unreadable, stops
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
		f.bytes -= r.bytes
	}
	f.writes++
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

func (f *flight) size() (rows int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows, f.bytes
}
