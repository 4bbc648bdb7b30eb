package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// queue is what a flight has of one topic. It is removed when it is empty.
//
// A topic whose destination does not respond must not delay the others (CONTRACT C-32), and whether it will
// respond is known too late. So while there are other topics, each leaves a part of what they share: of the
// calls (next), and of the rows and bytes in flight (limitSaturated). A topic that is alone may take everything.
type queue struct {
	topic   string
	rows    []*row    // queued
	running int       // deliveries
	began   time.Time // the last of them
	waking  bool      // a timer will wake a delivery for rows that gather
	count   int       // rows that are queued, wait for others of their key, or are in delivery
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

// addInFlight adds a row to a queue's and to all rows in flight.
func (f *flight) addInFlight(r *row, q *queue) {
	q.count++
	q.bytes += r.bytes
	r.queue = q
	f.inFlight = append(f.inFlight, r)
	r.place = len(f.inFlight)
}

// removeInFlight removes a row, and puts the last one in its place.
func (f *flight) removeInFlight(r *row) {
	if r.place == 0 {
		return
	}
	end := len(f.inFlight) - 1
	last := f.inFlight[end]
	f.inFlight[r.place-1], last.place = last, r.place
	f.inFlight[end], r.place = nil, 0
	f.inFlight = f.inFlight[:end]
	r.queue.count--
	r.queue.bytes -= r.bytes
	f.dropIdle(r.queue)
}

func (f *flight) removeAllInFlight(rows []*row) {
	for _, r := range rows {
		f.removeInFlight(r)
	}
}

// dropIdle removes an empty queue.
func (f *flight) dropIdle(q *queue) {
	if q.count == 0 && q.running == 0 {
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
	n = min(n, len(q.rows), q.rows[0].batchLimit())
	for safe < n && now.Before(q.rows[safe].safeUntil) && safe < q.rows[safe].batchLimit() {
		n = min(n, q.rows[safe].batchLimit())
		safe++
	}
	d.queue, d.began = q, now
	d.rows = append(d.rows[:0], q.rows[:safe]...) // the queue's memory must not keep events that are served
	clear(q.rows[:safe])
	d.overdue, d.abandoned, d.stuck, d.pinned = false, false, false, 0
	d.ensureContext(f.base)
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

// batchLimit is how many rows a delivery with this one may have.
func (r *row) batchLimit() int { return cmp.Or(r.maxBatch, math.MaxInt) }

// next chooses the topic of the next delivery: the one with the fewest running, and of these the one that
// was served the longest ago. Thus slow topics share the calls with the fast ones instead of slowing them
// down. The last calls are for topics that have none.
func (f *flight) next(now time.Time) (best *queue) {
	last := !f.alone && f.concurrency-f.running <= reserved(f.concurrency)
	for _, q := range f.turns {
		switch {
		case !now.Before(q.rows[0].safeUntil):
			notify(f.inDoubt)
		case q.running == 0:
			return q
		case f.gathers(q, now):
		case !last && (best == nil || q.running < best.running):
			best = q
		}
	}
	return best
}

// end removes a delivery from its queue.
func (f *flight) end(d *delivery) {
	d.queue.running--
	f.running--
	delete(f.active, d)
	f.bytes -= d.pinned
	if d.pinned > 0 {
		f.notifyLoop()
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
	if len(q.rows) >= min(f.sinkBatch, q.rows[0].batchLimit()) || left <= 0 {
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

// review updates which topics are slow.
func (f *flight) review(now time.Time) {
	for _, q := range f.turns {
		q.slow = !f.alone && now.Sub(q.rows[0].claimedAt) > longSupply
	}
}

// runsLow reports whether no more than lowWater rows are queued. Those of a slow topic may stay for long: no more
// than lowShare of them count.
func (f *flight) runsLow() bool {
	left, share := f.lowWater(), f.lowShare()
	for _, q := range f.turns {
		if q.slow {
			left -= min(len(q.rows), share)
		} else {
			left -= len(q.rows)
		}
		if left < 0 {
			return false
		}
	}
	return true
}

// lowShare is a topic's share of lowWater. All shares together do not exceed it, unless there are more topics than
// rows: so slow topics do not keep another from being claimed.
func (f *flight) lowShare() int { return max(1, f.lowWater()/max(1, len(f.queues))) }

// saturated reports whether no more rows of a topic should be claimed while there are others: it is slow and has
// its share queued, or it has more of the rows or bytes in flight than it leaves.
func (f *flight) saturated(q *queue) bool {
	return !f.alone && (q.slow && len(q.rows) >= f.lowShare() || q.count > f.maxRows-len(f.inFlight) || q.bytes > f.maxBytes-f.bytes)
}

// limitSaturated limits saturated topics to no rows, in addition to the limits given. changed is called when one of
// them can take rows again.
func (f *flight) limitSaturated(limits map[string]int) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var saturated []*queue
	for _, q := range f.queues {
		if f.saturated(q) {
			saturated = append(saturated, q)
		}
	}
	if len(saturated) == 0 {
		return limits
	}
	all := make(map[string]int, len(limits)+len(saturated))
	maps.Copy(all, limits)
	for _, q := range saturated {
		all[q.topic] = 0
	}
	f.await(func() bool { return slices.ContainsFunc(saturated, func(q *queue) bool { return !f.saturated(q) }) })
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
	f.removeAllInFlight(rows)
	f.notifyLoop()
	return rows
}

func (f *flight) emptyQueues() (rows []*row) {
	for _, q := range f.turns {
		rows = append(rows, q.rows...)
		q.rows = nil
	}
	f.turns = nil
	rows = append(rows, f.keys.disband("")...)
	f.removeAllInFlight(rows)
	f.notifyLoop()
	return rows
}

func noRows(q *queue) bool { return len(q.rows) == 0 }

// has reports whether rows of the topic are queued or in delivery that were claimed after a time.
func (f *flight) has(topic string, since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[topic]
	return q != nil && q.count > 0 &&
		slices.ContainsFunc(f.inFlight, func(r *row) bool { return r.queue == q && r.claimedAt.After(since) })
}
