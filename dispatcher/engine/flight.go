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
	callRows    int   // the most rows of all of them
	batch       int   // the most rows of a claim
	maxRows     int   // beyond it nothing is claimed
	maxBytes    int64 // likewise
	lease       time.Duration
	onDead      dispatcher.OnDead // with order per key
	base        context.Context   // of deliveries: carries values, and never ends
	changed     func()            // wakes the claim loop: what it waits for has happened
	inDoubt     chan struct{}     // wakes the keeper: a row's lease must be extended
	// maxBatchOf returns how many rows the next delivery of an event may have, 0 for any number; nil for all.
	maxBatchOf func(uuid.UUID) int

	mu          sync.Mutex
	work        sync.Cond         // deliveries wait here for rows
	queues      map[string]*queue // by topic
	turns       []*queue          // those with queued rows, the one that was served last at the end
	alone       bool              // there is only one topic
	running     int               // deliveries
	active      map[*delivery]bool
	inFlight    []*row // queued, waiting in line or in delivery: their leases are kept. In no order
	rows        int
	bytes       int64
	closed      bool
	paused      bool              // claimed rows are refused
	admits      func(string) bool // says whether events of a type are delivered; nil for all
	keys        keys              // which rows wait for others of their key; nil without order
	keysWaiting bool              // rows in the outbox wait for rows in here
	writes      int               // how often rows were written back
	awaits      func() bool       // what the claim loop waits for; nil for nothing
	claimRows   int               // rows of the next claim
	claimBytes  int64             // and its bytes
	filledAt    time.Time         // when a claim brought so many, if the last one did
}

// row is a claimed event on its way through the engine.
type row struct {
	event *dispatcher.Event
	// age is how old the event was when it was claimed, on the database's clock, and claimedAt is when
	// that claim was sent, on ours.
	age       time.Duration
	claimedAt time.Time
	bytes     int64 // what the event takes
	maxBatch  int   // rows of its delivery; 0 for any number
	// Guarded by flight.mu. safeUntil is when this worker must no longer rely on the lease.
	safeUntil time.Time
	delivery  *delivery // nil while queued
	lost      bool      // another worker holds it
	line      *line     // of its key, nil without order; guarded by flight.mu
	queue     *queue    // of its topic, once it is held
	place     int       // in flight.held, from 1; 0 when it is not there
}

// sinceCreation is how old the event is at a time of this process's clock.
func (r *row) sinceCreation(now time.Time) time.Duration { return r.age + now.Sub(r.claimedAt) }

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
	// Guarded by flight.mu. overdue: its time is over, and its context is cancelled. abandoned: the engine no
	// longer waits for it, and its rows are written back as failed. stuck: abandoned while the process continues
	// to run. pinned are the bytes that a stuck call keeps.
	overdue, abandoned, stuck bool
	pinned                    int64
}

// contextServes is how many calls have one context, at most: what a sink left behind ends with it.
const contextServes = 100

// ensureContext makes a new context when the last one is used up.
func (d *delivery) ensureContext(base context.Context) {
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
		callRows:    cfg.Concurrency * sinkBatch,
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
		claimBytes:  cfg.MaxBytes,
		keys:        newKeys(cfg.Ordering),
		alone:       len(cfg.Topics) == 1,
	}
	f.claimRows = min(f.batch, max(f.callRows, firstClaim))
	f.work.L = &f.mu
	return f
}

// room reports whether a claim may be made, and for how many rows and bytes: the queue runs low, so that
// deliveries never wait for a claim, and neither write-backs nor bytes have piled up. When there is
// no room, changed is called as soon as there is; call room again after longSupply, since topics may be slow by
// then. One claim of several topics takes half of the bytes at most: they may all be of one.
func (f *flight) room() (rows int, bytes int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.review(now)
	ok = f.await(func() bool {
		return f.runsLow() && f.rows <= f.maxRows && f.bytes < f.maxBytes
	})
	if ok {
		f.adapt(now)
	}
	bytes = min(f.maxBytes-f.bytes, f.claimBytes)
	if !f.alone {
		bytes = max(1, bytes/2)
	}
	return f.claimRows, bytes, ok
}

// lowWater is the number of queued rows below which the next claim is due: half a claim, or a whole one when
// claims have reached the batch size.
func (f *flight) lowWater() int {
	if f.claimRows == f.batch {
		return f.claimRows
	}
	return f.claimRows / 2
}

// adapt fits the size of claims to the deliveries: it doubles after a full claim that lasted for less than
// shortSupply, up to the batch size, and halves after one that lasted for more than longSupply, down to what the
// deliveries take at once.
func (f *flight) adapt(now time.Time) {
	if f.filledAt.IsZero() {
		return
	}
	switch lasted := now.Sub(f.filledAt); {
	case lasted < shortSupply:
		f.claimRows = min(2*f.claimRows, f.batch)
	case lasted > longSupply:
		f.claimRows = max(f.claimRows/2, min(f.callRows, f.batch))
	}
	f.filledAt = time.Time{}
}

// shrink halves the rows and bytes of the next claim: the last one took too long (CONTRACT C-35). grow doubles the
// bytes after each claim that succeeds, and adapt the rows.
func (f *flight) shrink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimRows, f.claimBytes = max(1, f.claimRows/2), max(1, min(f.claimBytes, f.maxBytes-f.bytes)/2)
}

func (f *flight) grow() { f.claimBytes = min(2*f.claimBytes, f.maxBytes) }

// empty reports whether every row is written back. If not, changed is called as soon as it is so.
func (f *flight) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.await(func() bool { return f.rows == 0 })
}

// await reports whether cond is true; if not, it records that the claim loop waits for it.
func (f *flight) await(cond func() bool) bool {
	f.awaits = nil
	if cond() {
		return true
	}
	f.awaits = cond
	return false
}

// notifyLoop wakes the claim loop, once, when what it waits for has happened.
func (f *flight) notifyLoop() {
	if f.awaits != nil && f.awaits() {
		f.awaits = nil
		f.changed()
	}
}

// rowBytes is what an event takes in addition to its payload and headers.
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
	if f.maxBatchOf != nil {
		r.maxBatch = f.maxBatchOf(e.ID)
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
	if claimed.Leased() >= f.claimRows {
		f.filledAt = time.Now()
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
		f.addInFlight(r, q)
		if f.keys.join(r) {
			f.enqueue(r)
		}
	}
	if f.keysWaiting = claimed.KeysWaiting; f.keysWaiting && f.writes != writes {
		f.keysWaiting = false // what they wait for was written while the claim was under way
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
			f.notifyLoop()
			return true
		}
		d.end()
		f.work.Wait()
	}
	d.end()
	return false
}

// finish ends a delivery with these results, and sets in ours which of its rows may be written back: none
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
			f.removeInFlight(r)
		}
		if !ours || errs[i] != nil {
			behind = append(behind, f.keys.leave(r)...)
		} else if next := f.keys.next(r); next != nil {
			f.enqueue(next)
		}
	}
	f.removeAllInFlight(behind)
	return behind
}

// written forgets finished rows: their outcome is in the database, or another worker has them.
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
	if f.keysWaiting && len(rows) > 0 {
		f.keysWaiting = false
		f.changed()
	}
	f.notifyLoop()
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
	for _, r := range f.inFlight {
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
