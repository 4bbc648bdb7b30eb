package pgstore

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// fullPass is how often a claim starts at the front of a topic's range all the same.
	fullPass = 500 * time.Millisecond
	// slack is how old a transaction may be at its commit for its events not to wait for a full pass.
	slack = 2 * time.Second
)

// floors remembers how far claims have come in each topic. The front of a range fills with entries
// of rows that are leased, or delivered and not yet vacuumed. Without a floor every claim walks over
// all of them: 10 µs for each thousand, and more of them while a long transaction holds vacuum back.
//
// A floor is only a hint. Rows may become due below it: a lease expires, a producer commits late, a
// row is released. So now and then a claim starts at the front, and so does one after a claim that
// found nothing.
type floors struct {
	mu      sync.Mutex
	byTopic map[string]floor
}

type floor struct {
	position
	since time.Time // when the last claim that started at the front was made
}

// next returns where claims of the topics start, zero values for the front, and whether one does not
// start at the front.
func (f *floors) next(topics []string) (times []time.Time, ids []pgtype.UUID, floored bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	times, ids = make([]time.Time, len(topics)), make([]pgtype.UUID, len(topics))
	for i, topic := range topics {
		if old, ok := f.byTopic[topic]; ok && time.Since(old.since) >= fullPass {
			delete(f.byTopic, topic)
		}
		floor, ok := f.byTopic[topic]
		times[i], ids[i], floored = floor.at, pgUUID(floor.id), floored || ok
	}
	return times, ids, floored
}

// update sets the floors of topics after a claim: at the last row of a full share, and a little before
// now where all that was due was taken. A claim that does not tell which of them it was lifts them.
func (f *floors) update(shares []dispatcher.Share, got found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := got.rows
	for i, share := range shares {
		n := 0
		for n < len(rows) && rows[n].share == i {
			n++
		}
		next := floor{since: time.Now()}
		if old, ok := f.byTopic[share.Topic]; ok {
			next.since = old.since
		}
		switch {
		case n > 0 && n == share.Limit:
			next.position = rows[n-1].position
			f.byTopic[share.Topic] = next
		case got.cut || len(got.deaths) > 0 || len(got.rows) == 0:
			delete(f.byTopic, share.Topic)
		default:
			next.position = position{at: got.at.Add(-slack)}
			f.byTopic[share.Topic] = next
		}
		rows = rows[n:]
	}
}
