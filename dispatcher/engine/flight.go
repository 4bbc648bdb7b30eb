package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
)

// flight holds the rows that this process has claimed and not yet written back. A row is queued until a delivery takes it,
// and finished when its outcome waits for the completer. flight bounds them all, by number and by bytes, and hands them out
// topic by topic in turn.
//
// It has the one lock: its parts have none, and are reached through it alone. Four doors lead to it, each with the verbs of
// one user: flight itself for deliveries, [intake] for the claim loop, [leases] for the keeper, and [controls] for the methods
// of Dispatcher.
type flight struct {
	lease  time.Duration
	onDead dispatcher.OnDead // with order per key

	mu      sync.Mutex
	entry   entry
	topics  topics
	queue   queue
	account account
	calls   calls
	claims  claims
	faults  faults
	signals signals
}

// entry is what is let into the flight.
type entry struct {
	closed bool
	paused bool              // by Pause: claimed rows are refused
	admits func(string) bool // says whether events of a type are delivered; nil for all
}

// signals are what waits for a flight.
type signals struct {
	work    sync.Cond     // deliveries wait here for rows
	inDoubt chan struct{} // wakes the keeper: a row's lease must be extended
	changed func()        // wakes the claim loop: what it waits for has happened
	awaited func() bool   // what the claim loop waits for; nil for nothing
	alarmAt time.Time     // when alarm wakes deliveries; zero for never
	alarm   *time.Timer   // one for all topics
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
	wait      time.Duration // until it is due again, once it was taken back
	before    fault         // its last failure in this process, before the one that is judged
	// The flight's lock guards these. safeUntil is when this worker must no longer rely on the lease.
	safeUntil time.Time
	delivery  *delivery // nil while queued
	suspicion int       // of calls.suspicion
	lost      bool      // another worker holds it
	turn      int       // of its tenant, with fairness
	line      *line     // of its key, nil without order
	topic     *topic    // once it is in flight
	place     int       // in account.inFlight, from 1; 0 when it is not there
}

// sinceCreation is how old the event is at a time of this process's clock.
func (r *row) sinceCreation(now time.Time) time.Duration { return r.age + now.Sub(r.claimedAt) }

// isLost reports whether another worker holds it.
func (r *row) isLost() bool { return r.lost }

// firstFault is when the first delivery of the event failed whose attempt was given back, on this process's clock: now,
// if there was none.
func (r *row) firstFault(now time.Time) time.Time {
	if r.event.FaultSince.IsZero() {
		return now
	}
	return r.claimedAt.Add(-r.faulty)
}

// newFlight makes one for a sink that takes so many rows at once, and keeps the order of a key among them or not.
func newFlight(base context.Context, cfg dispatcher.Config, sinkBatch int, keepsOrder bool, changed func()) *flight {
	f := &flight{
		lease: cfg.Lease, onDead: cfg.OnDead, faults: faults{},
		topics:  newTopics(cfg),
		queue:   queue{keys: newKeys(cfg.Ordering, keepsOrder)},
		account: account{maxBytes: cfg.MaxBytes},
		calls: calls{
			bound: deliverLoops(cfg), processes: 1, batch: sinkBatch, base: base,
			active: map[*delivery]bool{},
		},
		claims:  claims{maxRows: cfg.BatchSize, bytes: cfg.MaxBytes},
		signals: signals{inDoubt: make(chan struct{}, 1), changed: changed},
	}
	f.account.forgetIdle = f.topics.forgetIdle
	f.signals.work.L = &f.mu
	atFirst := f.calls.bound
	if cfg.Concurrency == dispatcher.Auto {
		f.calls.ofAll, f.calls.decisions = cfg.MaxConcurrency, map[string]int{}
		for _, d := range pacer.Decisions {
			f.calls.decisions[string(d)] = 0
		}
		atFirst = min(pacer.FirstLimit, f.calls.ofAll)
	}
	f.fit(atFirst)
	f.claims.rows, f.claims.ofKey = min(f.claims.maxRows, max(f.claims.callRows, firstClaim)), firstOfKey
	return f
}

// fit fits what may be in flight to the calls that may run. A key may always have as many rows as leave one to deliver for
// every call when the flight is full, or as fit one call.
func (f *flight) fit(calls int) {
	f.claims.callRows = calls * f.calls.batch
	f.account.maxRows = f.claims.callRows + 3*f.claims.maxRows
	if f.claims.leastOfKey = max(1, f.account.maxRows/f.claims.callRows); f.queue.keys.together {
		f.claims.leastOfKey = max(f.claims.leastOfKey, min(firstOfKey, f.calls.batch))
	}
}

// await reports whether cond is true; if not, it notes that the claim loop waits for it.
func (s *signals) await(cond func() bool) bool {
	s.awaited = nil
	if cond() {
		return true
	}
	s.awaited = cond
	return false
}

// happened wakes the claim loop, once, when what it waits for has happened.
func (s *signals) happened() {
	if s.awaited != nil && s.awaited() {
		s.awaited = nil
		s.changed()
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

// take waits for queued rows and begins a delivery of up to n rows of one topic. It returns false when
// the flight is closed. Rows are not begun while their lease is in doubt (CONTRACT C-31): they wait
// until the keeper has extended it, or found it lost.
func (f *flight) take(d *delivery, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.entry.closed {
		if f.begin(d, n, time.Now()) {
			f.signals.happened()
			if f.topics.rates.limited() && len(f.queue.waiting) > 0 {
				f.signals.work.Signal() // one was woken for the tokens of several calls
			}
			return true
		}
		f.signals.work.Wait()
	}
	return false
}

// begin makes d the next delivery, of up to n rows, or returns false when there is none.
func (f *flight) begin(d *delivery, n int, now time.Time) bool {
	f.topics.rates.lapse(now)
	t := f.nextCall(now)
	if t == nil {
		return false
	}
	rows := t.rowsOfCall(min(n, t.permits(now)), mostSuspects-f.calls.suspicion, now, d.rows)
	t.use(len(rows))
	f.account.begin(t, len(rows))
	f.queue.take(t, rows, now)
	*d = delivery{topic: t, began: now, writable: d.writable, results: d.results, rows: rows}
	if f.calls.ofAll > 0 && t.calls.pacer == nil {
		t.calls.pacer = pacer.New(f.calls.bound, f.calls.processes)
		f.resize()
	}
	f.calls.begin(d, f.account.busyTopics)
	return true
}

// nextCall chooses the topic of the next call, and its first row. Of those that have had none the newest is first: many that came
// together, and may all be slow, keep it waiting for the next call that ends and not for a call of each.
func (f *flight) nextCall(now time.Time) *topic {
	if f.calls.ofAll > 0 && f.calls.running >= f.calls.bound { // with dispatcher.Auto more deliveries wait than may run
		return nil
	}
	var best *topic
	var least float64
	var next time.Time // when another topic may have a call
	first, l := 0, f.calls.load(now, f.topics.alone(), f.queue.waiting)
	l.places = max(1, l.places)
	for _, t := range f.queue.waiting {
		a := t.allotCalls(l)
		switch {
		case a.by == byLease:
			notify(f.signals.inDoubt)
		case a.n == 0:
			next = sooner(next, a.next)
		default:
			use := t.calls.use(now)
			if best == nil || use < least || use == least && t.queue.rows[0].claimedAt.After(best.queue.rows[0].claimedAt) {
				best, first, least = t, a.first, use
			}
		}
	}
	if first > 0 {
		best.queue.moveFirst(first)
	}
	f.wakeAt(next, now)
	return best
}

// wakeAt wakes deliveries at a time, zero for never: topics may have calls then.
func (f *flight) wakeAt(at, now time.Time) {
	if at.IsZero() || !f.signals.alarmAt.IsZero() && !at.Before(f.signals.alarmAt) {
		return
	}
	if f.signals.alarmAt = at; f.signals.alarm != nil {
		f.signals.alarm.Stop()
	}
	f.signals.alarm = time.AfterFunc(at.Sub(now), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.signals.alarmAt.Equal(at) {
			f.signals.alarmAt = time.Time{}
		}
		for _, t := range f.queue.waiting { // each call that it may have
			for range min(f.calls.bound, 1+len(t.queue.rows)/f.calls.batch) {
				f.signals.work.Signal()
			}
		}
	})
}

// sooner is the earlier of two times, of which the zero one is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// end removes a delivery from its topic.
func (f *flight) end(d *delivery) {
	t := d.topic
	t.queue.endTurn(d.rows)
	f.calls.end(d, time.Now())
	f.account.pin(t, -d.pinned)
	if d.pinned > 0 {
		f.signals.happened()
	}
	if len(t.queue.rows) > 0 {
		f.signals.work.Signal() // they may have gathered
	}
	f.account.dropIdle(t)
}

// finish ends a delivery with these results, and sets which of its rows may be written back: none
// of an abandoned delivery, and not those that were lost (CONTRACT C-23). The others stay in flight until
// written. A row that succeeded lets the next one of its key begin. returned must not go
// before one that did not: they must be released (CONTRACT C-50). So must those rows of the call that it did not
// deliver, since one before them failed.
func (f *flight) finish(d *delivery, errs []error) (returned []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(d)
	now := time.Now()
	d.writable = d.writable[:0]
	for i, r := range d.rows {
		writable, behind := !d.abandoned && !r.lost, r.behindFailed()
		switch {
		case !behind || !writable:
		case errs[i] != nil:
			returned, writable = append(returned, r), false
		default:
			f.topics.dest.log.Error("the sink delivered an event although an earlier one of its key in the same call failed; it must not say that it keeps the order", "event", r.event.ID, "topic", d.topic.name)
		}
		d.writable = append(d.writable, writable)
		if writable {
			f.account.leave(r)
		}
		if !writable || errs[i] != nil {
			if r.line != nil {
				r.line.failed = r.line.failed || errs[i] != nil
			}
			returned = append(returned, f.queue.keys.leave(r)...)
			continue
		}
		next := f.queue.keys.next(r)
		waits := next != nil && next.delivery != d
		if waits {
			f.queue.add(next)
			f.signals.work.Signal()
		}
		if r.line != nil && (next == nil || waits) {
			f.claims.adaptKey(r.line, next != nil, now)
		}
	}
	f.account.leave(returned...)
	return append(returned, f.postpone(d.topic, time.Now())...)
}

// written forgets finished rows: their outcome is in the database, or another worker has them.
func (f *flight) written(rows []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(rows)
}

func (f *flight) forget(rows []*row) {
	f.account.settle(rows)
	f.survived(rows)
	if f.claims.keysWait && slices.ContainsFunc(rows, (*row).endsLine) {
		f.claims.keysWait = false
		f.signals.changed()
	}
	f.signals.happened()
}

// takeBack takes the rows of a topic whose delivery has not begun, or of all for nil: they must be released.
func (f *flight) takeBack(t *topic) []*row {
	rows := f.queue.clear(t)
	f.account.leave(rows...)
	f.signals.happened()
	return rows
}

// close ends handing out, and returns the rows whose delivery has not begun.
func (f *flight) close() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entry.closed = true
	f.signals.work.Broadcast()
	return f.takeBack(nil)
}
