package pgstore

import (
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// lookAhead times as many rows are looked at as are asked for, when many wait for others, and
	// lookMargin times as many as the last claim would have needed.
	lookAhead  = 4
	lookMargin = 1.1
	// lookNear is how many rows there may be for each that can be had, for all to be locked as they are
	// read: those that wait for others are then locked in vain. Up to lookDense it is not worth looking
	// for any beside those that are asked for.
	lookNear  = 2.5
	lookDense = 1.2
	// lookLeast is how many are looked at whatever is asked for, and stepRows how many in each step of a
	// pass but the first: mostly that one goes all the way.
	lookLeast = 50
	stepRows  = 5000
	// searchMore times as many rows are looked at in each further statement of a claim, up to those of a
	// step: the one before it found none.
	searchMore = 4
	// stepEvery is how often claims that find rows make a step, at most: steps that find little get one
	// part of the time in passShare. One that took long, alone, was held up by something else, and nothing
	// waits for that; nor ever for longer than for passes that have spent their budget.
	stepEvery = 50 * time.Millisecond
	// recallKeys bounds the keys that are remembered of a topic.
	recallKeys = 1000
	// While there are enough other rows, keys are read again in one claim in recallEvery, and get one part
	// of it in recallPart: the claims in between need not look for them, and a key with very many rows
	// gets no more.
	recallEvery = 150 * time.Millisecond
	recallPart  = 8
	// recallAfter is when a key that was passed by is read again for the first time. The wait doubles
	// up to recallUntil; then a pass will find it.
	recallAfter = 2 * time.Millisecond
	recallUntil = time.Second
	// Ranges leave out up to exceptMost of the keys that are to be read again soon: each row is compared
	// with all of them.
	exceptMost = 16
	exceptSoon = 50 * time.Millisecond
)

// keyed remembers how far claims in order per key have come. All of it is hints, as floors are.
type keyed struct {
	mu      sync.Mutex
	byTopic map[string]*passage
	budget  budget
	turn    time.Time // when keys were read again last
}

// passage is how claims pass through the rows of a topic. They go on from a floor, past rows that wait
// for others of their keys, and remember those keys, to read them directly soon. What becomes due below
// the floor otherwise is found by passes from the front to where the floor was when they began: the
// floor may well go on faster than they do. Any number of rows may wait there, so a pass is made in
// steps, and steps have a budget.
type passage struct {
	floor    position
	pass     position // how far the pass has come
	until    position // where it ends
	passing  bool
	since    time.Time // when it began
	passed   time.Time // when the last one began that came to the floor
	nextStep time.Time
	lastStep time.Duration // how long the last one took
	nextPass time.Time
	seen     time.Time // when all that was due had been looked at
	spread   float64   // how many rows there are for each that can be had
	full     bool      // there were as many rows for the last claim as it looked at
	others   bool      // it found enough beside those of keys that it read again
	keys     map[int64]recall
}

// recall is a key that was passed by.
type recall struct {
	at    time.Time // when it is read again
	wait  time.Duration
	again bool // it was passed by more than once
}

// claiming is one claim, which may take several statements.
type claiming struct {
	began time.Time
	tries int // statements before this one that looked from a floor, and found nothing
}

// next says where a statement looks.
func (k *keyed) next(shares []dispatcher.Share, perKey int, c claiming, now time.Time) looking {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := looking{claiming: c, at: now, each: make([]int, len(shares)), near: true, dense: true, except: []int64{}}
	affordable := k.budget.affordable(now)
	turn := now.Sub(k.turn) >= recallEvery
	for i, share := range shares {
		p, ok := k.byTopic[share.Topic]
		if !ok {
			p = &passage{spread: 1, keys: map[int64]recall{}}
			k.byTopic[share.Topic] = p
		}
		limit := share.Limit
		if turn || !p.others {
			limit -= l.recall(p, i, limit, perKey)
		}
		from, step := p.from(affordable, now)
		rows, most := int(lookMargin*p.spread*float64(limit)), max(stepRows, lookAhead*limit)
		switch {
		case step && from != (position{}):
			rows = most
		case !step:
			for range c.tries {
				rows = min(most, searchMore*rows)
			}
		}
		l.topics = append(l.topics, share.Topic)
		l.limits = append(l.limits, int32(limit))
		l.times = append(l.times, from.at)
		l.ids = append(l.ids, pgUUID(from.id))
		l.rows = append(l.rows, int32(max(rows, lookLeast)))
		l.steps = append(l.steps, step)
		l.near = l.near && !step && p.spread < lookNear
		l.dense = l.dense && !step && p.full && p.spread < lookDense
		if p.full && c.tries == 0 {
			l.leaveOut(p)
		}
	}
	if len(l.keys) > 0 {
		k.turn = now
	}
	if slices.Contains(l.steps, true) { // what is forgotten before it is read again is found by a pass
		l.except = l.except[:0]
	}
	return l
}

// leaveOut has the ranges leave out keys whose rows they came upon again and again: keys with very many,
// which are read directly.
func (l *looking) leaveOut(p *passage) {
	for hash, r := range p.keys {
		if len(l.except) < exceptMost && r.again && r.wait < exceptSoon {
			l.except = append(l.except, hash)
		}
	}
}

// recall adds keys of a topic that are to be read again, for up to half of its rows, or a small part
// while there are enough others. It returns for how many.
func (l *looking) recall(p *passage, share, limit, perKey int) (rows int) {
	most := limit / 2
	if p.others {
		most = min(most, max(1, limit/recallPart))
	}
	var due []int64
	for hash, r := range p.keys {
		if len(due) < most && !r.at.After(l.at) {
			due = append(due, hash)
		}
	}
	if len(due) == 0 {
		return 0
	}
	each := min(perKey, most/len(due))
	l.each[share] = each
	for _, hash := range due {
		l.keyRanges = append(l.keyRanges, int64(share+1))
		l.keys = append(l.keys, hash)
		l.keyRows = append(l.keyRows, int32(each))
	}
	return each * len(due)
}

// from is where the next range of the topic begins, and whether it is a step of a pass.
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

// update notes what a statement found, and reports whether its claim has looked at all that is due.
func (k *keyed) update(l looking, told told, f found, now time.Time) (all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budget.spent(now.Sub(l.at), slices.Contains(l.steps, true))
	affordable := k.budget.affordable(now)
	claimed, others := make([]int, len(l.topics)), make([]int, len(l.topics))
	for _, r := range f.rows {
		claimed[r.share]++
		others[r.share]++
	}
	for _, key := range told.Recalled {
		others[key.Range-1] -= l.each[key.Range-1]
	}
	for _, r := range told.Reached {
		i := r.Range - 1
		p := k.byTopic[l.topics[i]]
		if l.limits[i] == 0 {
			p.seen = now
		}
		if f.cut || l.limits[i] == 0 { // rows that had no room are in the range, or none were asked for
			continue
		}
		part := stretch{end: position{at: f.at.Add(-slack)}, last: r.At == nil, step: l.steps[i], found: claimed[i] > 0 || len(l.except) > 0}
		if !part.last {
			part.end = position{*r.At, r.ID}
		}
		if !part.step {
			p.full, p.others = !part.last, others[i] > int(l.limits[i])/2
			if p.full {
				p.spread = min(max(1, float64(r.Looked)/float64(max(1, others[i]))), lookAhead)
			}
		} else if in := float64(claimed[i]) / float64(l.limits[i]); in < 1 {
			took := now.Sub(l.at)
			inVain := time.Duration((1 - in) * float64(min(took, p.lastStep, passDebt)))
			p.nextStep = now.Add(max(stepEvery, passShare*inVain))
			p.lastStep = took
		}
		p.reached(part, affordable, l.began, now)
	}
	for i, hash := range l.keys {
		k.byTopic[l.topics[l.keyRanges[i]-1]].missed(hash, now)
	}
	for _, key := range told.Recalled {
		k.byTopic[l.topics[key.Range-1]].recalled(key.Hash, slices.Contains(l.except, key.Hash), now)
	}
	for _, key := range told.Passed {
		k.byTopic[l.topics[key.Range-1]].remember(key.Hash, now)
	}
	return !slices.ContainsFunc(l.topics, func(topic string) bool { return k.byTopic[topic].seen.Before(l.began) })
}

// stretch is a part of a topic's range that was read.
type stretch struct {
	end   position
	last  bool // there is nothing due behind it
	step  bool // of a pass; else it began at the floor
	found bool // rows of it were had, or may have been left out
}

// reached notes how far a range was read. A claim that found nothing looks from the front as well, if that can
// be afforded. Then it has seen all: it must not go in circles past rows that wait.
func (p *passage) reached(s stretch, affordable bool, began, now time.Time) {
	switch {
	case !s.step:
		p.floor = s.end
	case !s.last && s.end.compare(p.until) < 0:
		p.pass = s.end
	default:
		p.passing = false
		if s.last || s.end.compare(p.floor) >= 0 {
			p.floor, p.passed = s.end, p.since
		}
	}
	if !s.last || s.found {
		return
	}
	p.nextPass = now // in this claim, or the next
	if affordable && p.passed.Before(began) {
		p.nextStep = now
	} else {
		p.seen = now
	}
}

// missed notes that a key was read in vain.
func (p *passage) missed(hash int64, now time.Time) {
	r := p.keys[hash]
	r.wait *= 2
	if r.wait > recallUntil {
		delete(p.keys, hash)
		return
	}
	r.at = now.Add(r.wait)
	p.keys[hash] = r
}

// recalled notes that rows of a key were had. There may be more of one that was left out.
func (p *passage) recalled(hash int64, leftOut bool, now time.Time) {
	if !leftOut {
		delete(p.keys, hash)
		return
	}
	p.keys[hash] = recall{now.Add(recallAfter), recallAfter, true}
}

// remember notes that a key was passed by.
func (p *passage) remember(hash int64, now time.Time) {
	r, ok := p.keys[hash]
	switch {
	case ok:
		r.again = true
		p.keys[hash] = r
	case len(p.keys) < recallKeys:
		p.keys[hash] = recall{now.Add(recallAfter), recallAfter, false}
	}
}

// behind reports whether rows of the topics are known to wait for others.
func (k *keyed) behind(shares []dispatcher.Share) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, share := range shares {
		if p, ok := k.byTopic[share.Topic]; ok && len(p.keys) > 0 {
			return true
		}
	}
	return false
}
