package pgstore

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Claims in order per key find their rows as follows. A row can be claimed if no live row of its key comes
// before it. In a topic where many rows wait for others, the first rows by time may all be blocked, so a claim
// must not look at them again and again.
//
//   - A claim scans a range of the topic's rows that are due, from its floor: the position where the last claim
//     stopped. It takes the rows that are first of their keys, and remembers the keys of the blocked ones (recall).
//   - A remembered key is read directly, by the index of keys: as soon as this worker has written back what it holds of the key,
//     or a moment later if another worker may hold it. While its first row is still not free, the pause doubles; after a
//     second the key is forgotten.
//   - A pass scans from the front of the topic to the floor, and so finds what became free, or due, below the floor: rows
//     of forgotten keys, retries, rows of lost leases. It is made in steps of bounded size, and all passes of a store share a budget
//     of time (floors.go), so that they cost the claims little.
//   - The spread of a topic is how many rows a claim had to scan for each row that it took. It sets the size of the next
//     scan and the statement: rows are locked as they are scanned where nearly all can be had (dense), and after the look
//     at what comes before them otherwise.
//
// A claim that finds nothing scans more, and then from the front, before it says that nothing is due, unless rows wait for others
// that this worker holds. Which rows are
// safe to take is decided by the SQL alone: what is remembered here decides only where it looks.
const (
	// A scan covers scanMargin times as many rows as the limit takes by the last claim's spread, and at most
	// maxScanAhead times the limit, or stepRows. It covers at least minScan.
	scanMargin   = 1.1
	maxScanAhead = 4
	minScan      = 50
	// Up to a spread of denseSpread no more rows are scanned than the limit, and all of them are locked, the blocked ones in
	// vain: that costs a third less than to look the free ones up again.
	denseSpread = 1.2
	// searchMore is the factor by which the scan grows with each further statement of a claim that found nothing.
	searchMore = 4
	// stepRows is the size of each step of a pass but the first. The first has the size of a scan: mostly it
	// comes as far as the floor.
	stepRows = 5000
	// stepEvery is the least pause between two steps while claims find rows. Steps that find little pause
	// longer: they get one part in passShare of the time, judged by the shorter of the last two, so that one
	// slow step alone does not delay the next.
	stepEvery = 50 * time.Millisecond
	// recallKeys is the most keys that are remembered for a topic.
	recallKeys = 1000
	// While a topic has enough other rows, its remembered keys are read once in recallEvery, for one part in
	// recallPart of the claim: a key with very many rows gets no more.
	recallEvery = 150 * time.Millisecond
	recallPart  = 8
	// recallAfter is the pause before a blocked key is read for the first time. It doubles up to recallUntil; then
	// the key is left to the next pass.
	recallAfter = 2 * time.Millisecond
	recallUntil = time.Second
)

// keyed is what a store remembers of its claims in order per key. It is hints only, as floors are.
type keyed struct {
	mu      sync.Mutex
	byTopic map[string]*passage
	budget  budget
	turn    time.Time // when remembered keys were last read
	rows    map[uuid.UUID]heldRow
}

// passage is the state of one topic: the floor of its scans, its pass and its remembered keys. A pass ends where
// the floor was when the pass began, for the floor may rise faster than the pass does.
type passage struct {
	floor    position
	pass     position // where the next step of the pass begins
	until    position // where the pass ends
	passing  bool
	since    time.Time // the beginning of the pass
	passedAt time.Time // the beginning of the last pass that reached the floor
	nextStep time.Time
	lastStep time.Duration // the duration of the last step
	nextPass time.Time
	seen     time.Time         // when all rows that were due had been scanned
	spread   float64           // rows scanned for each row claimed
	full     bool              // the last scan had as many rows as it covers
	others   bool              // the last claim found enough rows of keys that were not remembered
	scarce   bool              // it found next to none
	keys     map[int64]recall  // by key_hash
	held     map[int64]heldKey // likewise
}

// recall is a remembered key: a scan met a row of it that was blocked.
type recall struct {
	at   time.Time     // when it is read next
	wait time.Duration // the pause before that
}

// of is the state of a topic: a new one for one that was forgotten, as one may be while its claim is under way.
func (k *keyed) of(topic string) *passage {
	p, ok := k.byTopic[topic]
	if !ok {
		p = &passage{spread: 1, keys: map[int64]recall{}, held: map[int64]heldKey{}}
		k.byTopic[topic] = p
	}
	return p
}

// next says where a statement looks, of a claim of which so many scans from a floor found nothing.
func (k *keyed) next(shares []dispatcher.Share, perKey, tries int, now time.Time) scan {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := scan{at: now, dense: true}
	affordable := k.budget.affordable(now)
	turn := now.Sub(k.turn) >= recallEvery
	for i, share := range shares {
		p := k.of(share.Topic)
		limit := share.Limit
		if turn || !p.others {
			limit -= l.recall(p, i, limit, perKey)
		}
		from, step := p.from(affordable, now)
		rows, most := int(scanMargin*p.spread*float64(limit)), max(stepRows, maxScanAhead*limit)
		switch {
		case step && from != (position{}):
			rows = most
		case !step:
			for range tries {
				rows = min(most, searchMore*rows)
			}
		}
		l.topics = append(l.topics, share.Topic)
		l.limits = append(l.limits, int32(limit))
		l.from = append(l.from, from)
		l.rows = append(l.rows, int32(max(rows, minScan)))
		l.steps = append(l.steps, step)
		l.dense = l.dense && !step && p.full && p.spread < denseSpread
	}
	if len(l.keys) > 0 {
		k.turn = now
	}
	return l
}

// recall adds the topic's remembered keys that are to be read now, for up to half of its rows, for a small part while
// there are enough others, or for all but that while there are next to none. It returns how many rows they may take.
func (l *scan) recall(p *passage, share, limit, perKey int) (rows int) {
	most := limit / 2
	switch {
	case p.others:
		most = min(most, max(1, limit/recallPart))
	case p.scarce:
		most = max(most, limit-max(limit/recallPart, perKey)) // a key that the range has too gets what the range leaves it
	}
	var due []int64
	for hash, r := range p.keys {
		if !r.at.After(l.at) {
			due = append(due, hash)
		}
	}
	each := max(1, most/max(1, len(due)))
	for _, hash := range due {
		n := min(perKey, each, most-rows)
		if n == 0 {
			break
		}
		rows += n
		l.keyRanges = append(l.keyRanges, int64(share+1))
		l.keys = append(l.keys, hash)
		l.keyRows = append(l.keyRows, int32(n))
	}
	return rows
}

// from is where the topic's next scan begins, and whether it is a step of a pass.
func (p *passage) from(affordable bool, now time.Time) (from position, step bool) {
	affordable = affordable || p.floor == position{}
	if affordable && !p.passing && !now.Before(p.nextPass) {
		p.passing, p.since, p.pass, p.until = true, now, position{}, p.floor
		p.nextStep, p.nextPass = now, now.Add(fullPass)
	}
	if affordable && p.passing && !now.Before(p.nextStep) {
		p.nextStep = now.Add(stepEvery)
		return p.pass, true
	}
	return p.floor, false
}

// update records the result of a statement, and reports whether its claim, which began then, has scanned all rows that are due,
// or need not do so because of waitsForOwn.
func (k *keyed) update(l scan, report scanReport, f found, began, now time.Time) (all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budget.spent(now.Sub(l.at), slices.Contains(l.steps, true))
	affordable := k.budget.affordable(now)
	claimed, others, recalled := make([]int, len(l.topics)), make([]int, len(l.topics)), map[int64]bool{}
	for _, key := range report.Recalled {
		recalled[key.Hash] = true
	}
	for _, r := range f.rows {
		if claimed[r.share]++; !recalled[r.key] {
			others[r.share]++
		}
		if r.key != 0 && r.ended == "" {
			k.hold(k.of(l.topics[r.share]), r)
		}
	}
	for _, r := range report.Reached {
		i := r.Range - 1
		p := k.of(l.topics[i])
		if l.limits[i] == 0 {
			p.seen = now
		}
		if f.cut || l.limits[i] == 0 { // rows that had no room are in the range, or the limit is 0
			continue
		}
		part := stretch{end: position{at: f.at.Add(-slack)}, last: r.At == nil, step: l.steps[i], found: claimed[i] > 0}
		if !part.last {
			part.end = position{timeOf(*r.At), r.ID}
		}
		if !part.step {
			p.full, p.others, p.scarce = !part.last, others[i] > int(l.limits[i])/2, others[i] <= int(l.limits[i])/recallPart
			if p.full {
				p.spread = min(max(1, float64(r.Scanned)/float64(max(1, others[i]))), maxScanAhead)
			}
		} else if in := float64(others[i]) / float64(l.limits[i]); in < 1 {
			took := now.Sub(l.at)
			inVain := time.Duration((1 - in) * float64(min(took, p.lastStep, passDebt)))
			p.nextStep = now.Add(max(stepEvery, passShare*inVain))
			p.lastStep = took
		}
		p.reached(part, affordable, began, now)
	}
	for i, hash := range l.keys {
		k.of(l.topics[l.keyRanges[i]-1]).missed(hash, now)
	}
	for _, key := range report.Recalled {
		delete(k.of(l.topics[key.Range-1]).keys, key.Hash) // one that has more was passed
	}
	for _, key := range report.Passed {
		k.of(l.topics[key.Range-1]).remember(key.Hash, now)
	}
	return !slices.ContainsFunc(l.topics, func(topic string) bool {
		p := k.of(topic)
		return p.seen.Before(began) && !p.waitsForOwn()
	})
}

// stretch is the part of a topic that one scan covered.
type stretch struct {
	end   position
	last  bool // nothing is due behind it
	step  bool // it was a step of a pass; otherwise it began at the floor
	found bool // rows of it were claimed
}

// reached records how far a scan came. A claim that found nothing scans from the front as well, if the budget
// allows. Then it has seen all rows, and ends: otherwise it would go in circles past blocked rows.
func (p *passage) reached(s stretch, affordable bool, began, now time.Time) {
	switch {
	case !s.step:
		p.floor = s.end
	case !s.last && s.end.compare(p.until) < 0:
		p.pass = s.end
	default:
		p.passing = false
		if s.last || s.end.compare(p.floor) >= 0 {
			p.floor, p.passedAt = s.end, p.since
		}
	}
	if !s.last || s.found {
		return
	}
	if p.waitsForOwn() {
		p.seen = now
		return
	}
	p.nextPass = now // in this claim, or the next
	if affordable && p.passedAt.Before(began) {
		p.nextStep = now
	} else {
		p.seen = now
	}
}

// missed records that the first row of a remembered key was not free.
func (p *passage) missed(hash int64, now time.Time) {
	switch r, ok := p.keys[hash]; {
	case !ok: // another claim got it
	case 2*r.wait > recallUntil:
		delete(p.keys, hash)
		delete(p.held, hash) // the outcome of one may never be written
	default:
		p.recall(hash, 2*r.wait, now)
	}
}

// remember records that a scan met a blocked row of a key.
func (p *passage) remember(hash int64, now time.Time) {
	if _, ok := p.keys[hash]; !ok && len(p.keys) < recallKeys {
		p.recall(hash, recallAfter, now)
	}
}

// keysWaiting are the topics of which rows are known to wait for others.
func (k *keyed) keysWaiting(shares []dispatcher.Share) (topics []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, share := range shares {
		if p, ok := k.byTopic[share.Topic]; ok && len(p.keys) > 0 {
			topics = append(topics, share.Topic)
		}
	}
	return topics
}
