package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// queue is what a flight holds of one topic. It is there while that is anything.
//
// A topic whose destination does not answer must not hold up the others (CONTRACT C-32), and whether it
// will answer is known too late. So while there are other topics, each leaves something of all that they
// share: of the calls (next), and of the rows and bytes in flight (skip). A topic that is alone has
// everything.
type queue struct {
	topic   string
	rows    []*row    // queued
	running int       // deliveries
	began   time.Time // the last of them
	waking  bool      // a timer will wake a delivery for rows that gather
	held    int       // rows that are queued, wait for others of their key, or are in delivery
	bytes   int64     // of these
	slow    bool      // its first row has waited for longer than longSupply, when that was looked at
}

// reserved is how many of the calls are left to topics without one: an eighth, and none of a single call.
func reserved(concurrency int) int {
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 7) / 8
}

// setAlone says whether there is only one topic. Until that is known there may be more.
func (f *flight) setAlone(alone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if alone && !f.alone {
		f.work.Broadcast()
	}
	f.alone = alone
}

// enqueue queues a row that may be delivered now.
func (f *flight) enqueue(r *row) {
	q := r.queue
	if len(q.rows) == 0 {
		f.turns = append(f.turns, q)
	}
	q.rows = append(q.rows, r)
	f.work.Signal()
}

// queueOf is the queue of a topic.
func (f *flight) queueOf(topic string) *queue {
	q := f.queues[topic]
	if q == nil {
		q = &queue{topic: topic}
		f.queues[topic] = q
	}
	return q
}

// hold adds a row of a queue to held.
func (f *flight) hold(r *row, q *queue) {
	q.held++
	q.bytes += r.bytes
	r.queue = q
	f.held = append(f.held, r)
	r.place = len(f.held)
}

// unhold takes a row out, and puts the last one in its place.
func (f *flight) unhold(r *row) {
	if r.place == 0 {
		return
	}
	end := len(f.held) - 1
	last := f.held[end]
	f.held[r.place-1], last.place = last, r.place
	f.held[end], r.place = nil, 0
	f.held = f.held[:end]
	r.queue.held--
	r.queue.bytes -= r.bytes
	f.dropIdle(r.queue)
}

func (f *flight) unholdAll(rows []*row) {
	for _, r := range rows {
		f.unhold(r)
	}
}

// dropIdle forgets a topic of which there is nothing left.
func (f *flight) dropIdle(q *queue) {
	if q.held == 0 && q.running == 0 {
		delete(f.queues, q.topic)
	}
}

// begin makes d the next delivery, of up to n rows, or returns false when there is none.
func (f *flight) begin(d *delivery, n int, now time.Time) bool {
	q := f.next(now)
	if q == nil {
		return false
	}
	safe := 1
	n = min(n, len(q.rows), q.rows[0].company())
	for safe < n && now.Before(q.rows[safe].safeUntil) && safe < q.rows[safe].company() {
		n = min(n, q.rows[safe].company())
		safe++
	}
	d.queue, d.began = q, now
	d.rows = append(d.rows[:0], q.rows[:safe]...) // the queue's memory must not keep events that are served
	clear(q.rows[:safe])
	d.overdue, d.abandoned, d.stuck, d.pinned = false, false, false, 0
	d.renew(f.base)
	for _, r := range d.rows {
		r.delivery = d
	}
	q.rows = q.rows[safe:]
	q.began = now
	q.running++
	f.running++
	f.active[d] = true
	at := slices.Index(f.turns, q)
	f.turns = slices.Delete(f.turns, at, at+1)
	if len(q.rows) > 0 {
		f.turns = append(f.turns, q)
	} else {
		q.rows = nil // or its memory would keep the events
	}
	return true
}

// company is how many rows the delivery of this one may have.
func (r *row) company() int { return cmp.Or(r.most, math.MaxInt) }

// next chooses the topic of the next delivery: the one with the fewest running, and of these the one that
// was served the longest ago. Thus slow topics share the calls with the fast ones instead of slowing them
// down. The last calls are for topics that have none.
func (f *flight) next(now time.Time) (best *queue) {
	last := !f.alone && f.concurrency-f.running <= reserved(f.concurrency)
	for _, q := range f.turns {
		switch {
		case !now.Before(q.rows[0].safeUntil):
			signal(f.inDoubt)
		case q.running == 0:
			return q
		case f.gathers(q, now):
		case !last && (best == nil || q.running < best.running):
			best = q
		}
	}
	return best
}

// end ends a delivery's part in its queue.
func (f *flight) end(d *delivery) {
	d.queue.running--
	f.running--
	delete(f.active, d)
	f.bytes -= d.pinned
	if d.pinned > 0 {
		f.notice()
	}
	if len(d.queue.rows) > 0 {
		f.work.Signal() // they may have gathered
	}
	f.dropIdle(d.queue)
}

// gatherFor bounds how long events gather behind a delivery.
const gatherFor = 50 * time.Millisecond

// gathers reports whether the rows of a topic wait for more: the sink takes batches, one is under way, and
// they would not fill another. Then a stream of events costs the destination one call at a time, and the
// database one write-back, instead of one for each event.
func (f *flight) gathers(q *queue, now time.Time) bool {
	left := gatherFor - now.Sub(q.began)
	if len(q.rows) >= min(f.sinkBatch, q.rows[0].company()) || left <= 0 {
		return false
	}
	if !q.waking {
		q.waking = true
		time.AfterFunc(left, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			q.waking = false
			f.work.Signal()
		})
	}
	return true
}

// review says anew which topics are slow.
func (f *flight) review(now time.Time) {
	for _, q := range f.turns {
		q.slow = !f.alone && now.Sub(q.rows[0].claimedAt) > longSupply
	}
}

// short reports whether few rows are queued. Those of a slow topic may stay for long: of them no more
// count than its part.
func (f *flight) short() bool {
	few, part := f.low(), f.part()
	for _, q := range f.turns {
		if q.slow {
			few -= min(len(q.rows), part)
		} else {
			few -= len(q.rows)
		}
		if few < 0 {
			return false
		}
	}
	return true
}

// part is a topic's part of the rows that are few. All parts together are no more than these, unless
// there are more topics than rows: slow topics do not keep another from being claimed.
func (f *flight) part() int { return max(1, f.low()/max(1, len(f.queues))) }

// enough says that no more rows of a topic should be claimed while there are others: it is slow and has
// its part of the few, or it has more of the room than it leaves.
func (f *flight) enough(q *queue) bool {
	return !f.alone && (q.slow && len(q.rows) >= f.part() || q.held > f.maxRows-len(f.held) || q.bytes > f.maxBytes-f.bytes)
}

// skip adds the topics that have enough to those that are held. changed is called when one of them has not
// any more.
func (f *flight) skip(held map[string]int) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var full []*queue
	for _, q := range f.queues {
		if f.enough(q) {
			full = append(full, q)
		}
	}
	if len(full) == 0 {
		return held
	}
	all := make(map[string]int, len(held)+len(full))
	maps.Copy(all, held)
	for _, q := range full {
		all[q.topic] = 0
	}
	f.await(func() bool { return slices.ContainsFunc(full, func(q *queue) bool { return !f.enough(q) }) })
	return all
}

// unqueue takes back all rows whose delivery has not begun: they must be released.
func (f *flight) unqueue() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.emptyQueues()
}

// unqueueTopic takes back those of one topic.
func (f *flight) unqueueTopic(topic string) (rows []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q := f.queues[topic]; q != nil {
		rows, q.rows = q.rows, nil
		f.turns = slices.DeleteFunc(f.turns, noRows)
	}
	rows = append(rows, f.keys.disband(topic)...)
	f.unholdAll(rows)
	f.notice()
	return rows
}

func (f *flight) emptyQueues() (rows []*row) {
	for _, q := range f.turns {
		rows = append(rows, q.rows...)
		q.rows = nil
	}
	f.turns = nil
	rows = append(rows, f.keys.disband("")...)
	f.unholdAll(rows)
	f.notice()
	return rows
}

func noRows(q *queue) bool { return len(q.rows) == 0 }

// has reports whether rows of the topic are queued or in delivery that were claimed after a time.
func (f *flight) has(topic string, since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[topic]
	return q != nil && q.held > 0 &&
		slices.ContainsFunc(f.held, func(r *row) bool { return r.queue == q && r.claimedAt.After(since) })
}
