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
	// read: those that wait for others are then locked in vain. Up to lookDense it is not worth sifting
	// them by their keys before others are looked for.
	lookNear  = 2.5
	lookDense = 1.2
	// lookLeast is how many are looked at whatever is asked for, and stepRows how many in each step of a
	// pass but the first: mostly that one goes all the way.
	lookLeast = 50
	stepRows  = 5000
	// stepEvery is how often claims that find rows make a step, at most: steps that find little get one
	// part of the time in passShare.
	stepEvery = 50 * time.Millisecond
	// recallKeys bounds the keys that are remembered of a topic.
	recallKeys = 1000
	// recallPart is the part of a full claim that is for keys that are read again: one in so many. A key
	// with very many rows gets no more while there are others.
	recallPart = 16
	// recallAfter is when a key that was passed by is read again for the first time. The wait doubles
	// up to recallUntil; then a pass will find it.
	recallAfter = 2 * time.Millisecond
	recallUntil = time.Second
)

// keyed remembers how far claims in order per key have come. All of it is hints, as floors are.
type keyed struct {
	mu      sync.Mutex
	byTopic map[string]*passage
	budget  budget
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
	nextStep time.Time
	nextPass time.Time
	spread   float64 // how many rows there are for each that can be had
	others   bool    // the last claim found enough rows beside those of keys that it read again
	keys     map[int64]recall
}

// recall is a key that was passed by.
type recall struct {
	at   time.Time // when it is read again
	wait time.Duration
}

// next says where a claim looks.
func (k *keyed) next(shares []dispatcher.Share, perKey int, now time.Time) looking {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := looking{at: now, each: make([]int, len(shares)), near: true, dense: true}
	affordable := k.budget.affordable(now)
	for i, share := range shares {
		p, ok := k.byTopic[share.Topic]
		if !ok {
			p = &passage{spread: 1, keys: map[int64]recall{}}
			k.byTopic[share.Topic] = p
		}
		limit := share.Limit - l.recall(p, i, share.Limit, perKey)
		from, step := p.from(affordable, now)
		rows := int(lookMargin * p.spread * float64(limit))
		if step && from != (position{}) {
			rows = max(stepRows, lookAhead*limit)
		}
		l.topics = append(l.topics, share.Topic)
		l.limits = append(l.limits, int32(limit))
		l.times = append(l.times, from.at)
		l.ids = append(l.ids, pgUUID(from.id))
		l.rows = append(l.rows, int32(max(rows, lookLeast)))
		l.steps = append(l.steps, step)
		l.near = l.near && !step && p.spread < lookNear
		l.dense = l.dense && !step && p.spread < lookDense
	}
	return l
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
		p.passing, p.pass, p.until = true, position{}, p.floor
		p.nextStep, p.nextPass = now, now.Add(fullPass)
	}
	if affordable && p.passing && !now.Before(p.nextStep) {
		p.nextStep = now.Add(stepEvery)
		return p.pass, true
	}
	return p.floor, false
}

// update notes what a statement found, and reports whether that was all that is due.
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
	all = true
	for _, r := range told.Reached {
		i := r.Range - 1
		if f.cut || l.limits[i] == 0 { // rows that had no room are in the range, or none were asked for
			all = all && !f.cut && len(l.keys) == 0
			continue
		}
		end, last := position{at: f.at.Add(-slack)}, r.At == nil
		if !last {
			end = position{*r.At, r.ID}
		}
		p := k.byTopic[l.topics[i]]
		if !l.steps[i] {
			p.others = others[i] > int(l.limits[i])/2
			if !last {
				p.spread = min(max(1, float64(r.Looked)/float64(max(1, others[i]))), lookAhead)
			}
		} else if in := float64(claimed[i]) / float64(l.limits[i]); in < 1 {
			inVain := time.Duration((1 - in) * float64(now.Sub(l.at)))
			p.nextStep = now.Add(max(stepEvery, passShare*inVain))
		}
		all = p.reached(end, last, l.steps[i], claimed[i] > 0, affordable, now) && all
	}
	for i, hash := range l.keys {
		k.byTopic[l.topics[l.keyRanges[i]-1]].missed(hash, now)
	}
	for _, key := range told.Recalled {
		delete(k.byTopic[l.topics[key.Range-1]].keys, key.Hash)
	}
	for _, key := range told.Passed {
		k.byTopic[l.topics[key.Range-1]].remember(key.Hash, now)
	}
	return all
}

// reached notes how far a range was read, and whether that is the last of what is due. It reports
// whether there is nothing else to look at, as far as steps can be afforded.
func (p *passage) reached(end position, last, step, found, affordable bool, now time.Time) (all bool) {
	if !step {
		p.floor = end
		if last && !found { // nothing from the floor on: look from the front
			p.nextStep, p.nextPass = now, now
		}
		return last && !affordable
	}
	if !last && end.compare(p.until) < 0 {
		p.pass = end
		return false
	}
	p.passing = false
	if last && !found {
		p.nextPass = now
	}
	if last || end.compare(p.floor) > 0 {
		p.floor = end
	}
	return last
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

// remember notes that a key was passed by.
func (p *passage) remember(hash int64, now time.Time) {
	if _, ok := p.keys[hash]; !ok && len(p.keys) < recallKeys {
		p.keys[hash] = recall{now.Add(recallAfter), recallAfter}
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
