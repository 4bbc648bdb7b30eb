package pgstore

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// fullPass is the least pause between two full passes: claims that start at the front of a topic's range.
	fullPass = 500 * time.Millisecond
	// Full passes get one part in passShare of the time. They may save up passCredit, and owe passDebt: then the
	// next one comes after five seconds.
	passShare  = 20
	passCredit = time.Second
	passDebt   = 250 * time.Millisecond
	// slack is how old a transaction may be at its commit for its events not to wait for a full pass.
	slack = 2 * time.Second
)

// floors remembers how far claims have come in each topic. The front of a range fills with entries
// of rows that are leased, or delivered and not yet vacuumed. Without a floor every claim walks over
// all of them: 10 µs for each thousand, and more of them while a long transaction holds vacuum back.
//
// A floor is only a hint. Rows may become due below it: a lease expires, a producer commits late, a
// row is released. So now and then a claim starts at the front, and so does one after a claim that
// found nothing. Ten million dead entries make that a tenth of a second, so passes have a budget: they
// come as often as they may cost.
type floors struct {
	mu      sync.Mutex
	byTopic map[string]floor
	budget  budget
}

// budget bounds the cost of full passes: the time that they take beyond that of other claims. On a server
// that is slow with everything the cost is small, so the rows that need a pass do not wait longer still. A single
// slow pass is charged like the one before it: something else held it up.
type budget struct {
	credit time.Duration // that passes may cost now
	last   time.Duration // cost of the last pass
	earned time.Time     // when credit was last added
	usual  time.Duration // average duration of a claim that is not a pass
}

// affordable reports whether another full pass may be made.
func (b *budget) affordable(now time.Time) bool {
	b.credit = min(b.credit+now.Sub(b.earned)/passShare, passCredit)
	b.earned = now
	return b.credit > 0
}

// spent charges the duration of a claim.
func (b *budget) spent(took time.Duration, pass bool) {
	if pass {
		cost := max(0, took-b.usual)
		b.credit = max(b.credit-min(cost, b.last), -passDebt)
		b.last = cost
		return
	}
	b.usual += (took - b.usual) / 8
}

type floor struct {
	position
	since time.Time // when the last claim that started at the front was made
}

// starts are the positions at which a claim starts, one for each topic.
type starts struct {
	from    []position // zero values for the front
	floored bool       // not all start at the front
	pass    bool       // not all start at a floor
	at      time.Time
}

// next returns where a claim of the topics starts.
func (f *floors) next(topics []string) starts {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := starts{from: make([]position, len(topics)), at: time.Now()}
	affordable := f.budget.affordable(s.at)
	for i, topic := range topics {
		if old, ok := f.byTopic[topic]; ok && affordable && s.at.Sub(old.since) >= fullPass {
			delete(f.byTopic, topic)
		}
		floor, ok := f.byTopic[topic]
		s.from[i] = floor.position
		s.floored, s.pass = s.floored || ok, s.pass || !ok
	}
	return s
}

// forget removes what is remembered of topics that are not among those with live rows: names of topics come and go. These are
// in the order of the database, which may not be Go's. A claim that is under way may still add something of one.
func forget[V any](mu *sync.Mutex, byTopic map[string]V, topics []string) {
	mu.Lock()
	defer mu.Unlock()
	topics = slices.Sorted(slices.Values(topics))
	maps.DeleteFunc(byTopic, func(topic string, _ V) bool {
		_, found := slices.BinarySearch(topics, topic)
		return !found
	})
}

// lift makes the next claim of the topics start at the front, if that may be.
func (f *floors) lift(shares []dispatcher.Share) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.budget.affordable(time.Now()) {
		return false
	}
	for _, share := range shares {
		delete(f.byTopic, share.Topic)
	}
	return true
}

// update sets the floors of topics after a claim: at the last row of a full share, and a little before
// now where all that was due was taken. Where bytes cut the claim short they are at the last row that
// was taken, unless rows behind it became dead: then they stay.
func (f *floors) update(s starts, shares []dispatcher.Share, got found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.budget.spent(time.Since(s.at), s.pass)
	rows := got.rows
	for i, share := range shares {
		n, anyDead := 0, false
		for ; n < len(rows) && rows[n].share == i; n++ {
			anyDead = anyDead || rows[n].ended != ""
		}
		next := floor{since: s.at}
		if old, ok := f.byTopic[share.Topic]; ok {
			next = old
		}
		switch {
		case n > 0 && (n == share.Limit || got.cut && !anyDead):
			next.position = rows[n-1].position()
		case got.cut || share.Limit == 0:
		default:
			next.position = position{at: got.at.Add(-slack)}
		}
		if next.position != (position{}) {
			f.byTopic[share.Topic] = next
		}
		rows = rows[n:]
	}
}
