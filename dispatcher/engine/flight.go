package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
)

// flight holds the rows that this process has claimed and not yet written back. A row is queued
// until a delivery takes it, and finished when its outcome waits for the completer. flight bounds
// them all, by number and by bytes, and hands them out topic by topic in turn.
type flight struct {
	concurrency int   // the most deliveries at once
	most        int   // with dispatcher.Auto: the same of all live processes; 0 without
	live        int   // processes
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

	mu sync.Mutex
	topics
	work        sync.Cond // deliveries wait here for rows
	waiting     []*topic  // those with queued rows, the one that was served last at the end
	inUse       int       // topics with rows in flight or calls
	running     int       // deliveries
	active      map[*delivery]bool
	inFlight    []*row // queued, waiting in line or in delivery: their leases are kept. In no order
	rows        int
	begun       int // of inFlight: those in delivery
	bytes       int64
	weight      int // of those begun and not yet written back: see mostSuspects
	closed      bool
	suspended   bool                   // by Pause: claimed rows are refused
	admits      func(string) bool      // says whether events of a type are delivered; nil for all
	keys        keys                   // which rows wait for others of their key; nil without order
	keysWaiting bool                   // rows in the outbox wait for rows in here
	writes      int                    // how often rows were written back
	awaits      func() bool            // what the claim loop waits for; nil for nothing
	claimRows   int                    // rows of the next claim
	crowded     bool                   // the next one is for tenants with few queued rows alone
	claimBytes  int64                  // and its bytes
	decisions   map[pacer.Decision]int // of the pacers
	filledAt    time.Time              // when a claim brought so many, if the last one did
}

// row is a claimed event on its way through the engine.
type row struct {
	event *dispatcher.Event
	// age is how old the event was when it was claimed, on the database's clock, and claimedAt is when
	// that claim was sent, on ours.
	age       time.Duration
	claimedAt time.Time
	faulty    time.Duration // how long before the claim the first of its faults was: see dispatcher.Event.FaultSince
	bytes     int64         // what the event takes
	maxBatch  int           // rows of its delivery; 0 for any number
	// Guarded by flight.mu. safeUntil is when this worker must no longer rely on the lease.
	safeUntil time.Time
	delivery  *delivery // nil while queued
	takes     int       // of flight.weight
	lost      bool      // another worker holds it
	turn      int       // of its tenant, with fairness
	line      *line     // of its key, nil without order; guarded by flight.mu
	topic     *topic    // once it is in flight
	place     int       // in flight.inFlight, from 1; 0 when it is not there
}

// sinceCreation is how old the event is at a time of this process's clock.
func (r *row) sinceCreation(now time.Time) time.Duration { return r.age + now.Sub(r.claimedAt) }

// firstFault is when the first delivery of the event failed whose attempt was given back, on this process's clock: now,
// if there was none.
func (r *row) firstFault(now time.Time) time.Time {
	if r.event.FaultSince.IsZero() {
		return now
	}
	return r.claimedAt.Add(-r.faulty)
}

// delivery is a running call of Sink.Deliver. Its memory is used again for the next one.
type delivery struct {
	ctx     context.Context
	cut     context.CancelCauseFunc
	topic   *topic
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

func newFlight(base context.Context, cfg dispatcher.Config, sinkBatch int, changed func()) *flight {
	f := &flight{
		concurrency: deliverLoops(cfg),
		live:        1,
		sinkBatch:   sinkBatch,
		batch:       cfg.BatchSize,
		maxBytes:    cfg.MaxBytes,
		lease:       cfg.Lease,
		onDead:      cfg.OnDead,
		base:        base,
		changed:     changed,
		inDoubt:     make(chan struct{}, 1),
		topics:      newTopics(cfg.Logger, cfg.Topics),
		active:      map[*delivery]bool{},
		claimBytes:  cfg.MaxBytes,
		keys:        newKeys(cfg.Ordering),
		decisions:   map[pacer.Decision]int{},
	}
	f.setCalls(cfg.Concurrency)
	if cfg.Concurrency == dispatcher.Auto {
		f.most = cfg.MaxConcurrency
		f.setCalls(min(pacer.FirstLimit, f.most))
	}
	f.claimRows = min(f.batch, max(f.callRows, firstClaim))
	f.limitRates(cfg)
	f.takeTurns(cfg)
	f.work.L = &f.mu
	return f
}

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
	r := &row{event: e, age: at.Sub(e.CreatedAt), faulty: at.Sub(e.FaultSince), claimedAt: started, safeUntil: f.safeUntil(started), bytes: sizeOf(e)}
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
// that must be released: all of them once the flight is closed or paused, those of a topic that was paused during the
// claim, those behind an unreadable one of their key, and those of a topic from the first event on whose type is not
// admitted. unreadable are the rows of claimed.Unreadable, and stops the types of those first events, by topic.
func (f *flight) add(claimed dispatcher.Claimed, started time.Time, writes int) (refused, unreadable []*row, stops map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimBytes = min(2*f.claimBytes, f.maxBytes)
	if claimed.Leased() >= f.claimRows {
		f.filledAt = time.Now()
	}
	for _, u := range claimed.Unreadable {
		unreadable = append(unreadable, f.newRow(u.Event, claimed.At, started))
	}
	var t *topic // of the last row: those of a topic come together
	for _, e := range claimed.Events {
		r := f.newRow(e, claimed.At, started)
		if t == nil || t.name != e.Topic {
			t = f.get(e.Topic)
			t.fed = len(t.queued) > 0
		}
		if f.admits != nil && f.stops(e, &stops) || f.closed || f.suspended || f.topicPaused(t) && !t.halfOpen || f.keys.behind(e, claimed.Unreadable) {
			refused = append(refused, r)
			continue
		}
		f.addInFlight(r, t)
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

// topicPaused reports whether a topic is paused, or the destination as a whole.
func (ts *topics) topicPaused(t *topic) bool {
	return ts.unreachable || t.state != dispatcher.BreakerClosed
}

// claimed notes what a claim brought: see topics.claimed.
func (f *flight) claimed(shares []dispatcher.Share, byTopic map[string]int, stops map[string]string, overRate []string) (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, share := range shares {
		f.get(share.Topic).found(share, byTopic[share.Topic], f.keysWaiting, slices.Contains(overRate, share.Topic), f.callLimit(f.get(share.Topic), now), now)
	}
	return f.topics.claimed(shares, byTopic, stops, now)
}

// claimFailed notes that a claim failed: see topics.claimFailed.
func (f *flight) claimFailed(shares []dispatcher.Share, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics.claimFailed(shares, err, time.Now())
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
			if f.rates.limited() && len(f.waiting) > 0 {
				f.work.Signal() // one was woken for the tokens of several calls
			}
			return true
		}
		f.work.Wait()
	}
	return false
}

// begin makes d the next delivery, of up to n rows, or returns false when there is none.
func (f *flight) begin(d *delivery, n int, now time.Time) bool {
	f.rates.lapse(now)
	t := f.nextCall(now)
	if t == nil {
		f.awaitToken(now)
		return false
	}
	n = t.callRows(min(n, t.permits(now)), mostSuspects-f.weight, now)
	t.use(n)
	f.begun += n
	t.begun += n
	*d = delivery{topic: t, began: now, ours: d.ours, results: d.results,
		rows: append(d.rows[:0], t.queued[:n]...)} // the queue's memory must not keep events that are served
	clear(t.queued[:n])
	d.ctx, d.cut = context.WithCancelCause(f.base)
	for _, r := range d.rows {
		r.delivery, r.takes = d, r.weight()
		f.weight += r.takes
	}
	t.queued = t.queued[n:]
	t.beginTurn(d.rows)
	t.began = now
	t.running++
	f.running++
	f.beganCall(t, now)
	f.active[d] = true
	at := slices.Index(f.waiting, t)
	f.waiting = slices.Delete(f.waiting, at, at+1)
	if len(t.queued) > 0 {
		f.waiting = append(f.waiting, t)
	} else {
		t.queued = nil // or its memory would keep the events
	}
	return true
}

// end removes a delivery from its topic.
func (f *flight) end(d *delivery) {
	t := d.topic
	d.cut(nil)
	t.endTurn(d.rows)
	t.running--
	f.running--
	if d.stuck {
		t.stuck--
	}
	if t.pacer != nil {
		t.pacer.Left(time.Now())
	}
	delete(f.active, d)
	t.bytes -= d.pinned
	f.bytes -= d.pinned
	if d.pinned > 0 {
		f.notifyLoop()
	}
	if len(t.queued) > 0 {
		f.work.Signal() // they may have gathered
	}
	f.dropIdle(t)
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
	f.survived(rows)
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
