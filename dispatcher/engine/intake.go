package engine

import (
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// A claim's rows should be delivered in no less time than shortSupply, so that claims are large, and
	// in no more than longSupply, so that no worker holds what another one could deliver.
	shortSupply = 100 * time.Millisecond
	longSupply  = 400 * time.Millisecond
	// firstClaim is the most rows of a claim before that is known, and firstOfKey those of a key in it.
	firstClaim = 100
	firstOfKey = 16
)

// intake is the door of the claim loop to a flight.
type intake flight

// intake is the flight as the claim loop sees it.
func (f *flight) intake() *intake { return (*intake)(f) }

// claims is how large claims are. It belongs to a flight, whose lock guards it.
type claims struct {
	maxRows    int       // of a claim
	callRows   int       // the most rows of all calls
	ofKey      int       // rows of a key in the next claim
	leastOfKey int       // which are never fewer
	rows       int       // of the next claim
	bytes      int64     // likewise
	forFewRows bool      // the next claim is for tenants with few queued rows alone
	keysWait   bool      // rows in the outbox wait for rows in here
	filledAt   time.Time // when a claim brought so many, if the last one did
}

// lowWater is the number of queued rows below which the next claim is due: half a claim, or a whole one when
// claims have reached the batch size.
func (c *claims) lowWater() int {
	if c.rows == c.maxRows {
		return c.rows
	}
	return c.rows / 2
}

// adapt fits the size of claims to the deliveries: it doubles after a full claim that lasted for less than
// shortSupply, up to the batch size, and halves after one that lasted for more than longSupply, down to what the
// deliveries take at once.
func (c *claims) adapt(now time.Time) {
	if c.filledAt.IsZero() {
		return
	}
	switch lasted := now.Sub(c.filledAt); {
	case lasted < shortSupply:
		c.rows = min(2*c.rows, c.maxRows)
	case lasted > longSupply:
		c.rows = max(c.rows/2, min(c.callRows, c.maxRows))
	}
	c.filledAt = time.Time{}
}

// adaptKey fits a key's part of a claim to what keys deliver, so that rows which wait in line keep no other key out: it doubles
// after a whole part that was delivered within shortSupply, and halves for rows that are left of one after longSupply.
func (c *claims) adaptKey(l *line, left bool, now time.Time) {
	switch lasted := now.Sub(l.began); {
	case !left && lasted < shortSupply && l.joined >= c.ofKey:
		c.ofKey = min(2*c.ofKey, c.maxRows)
	case left && lasted > longSupply:
		c.ofKey = max(c.ofKey/2, c.leastOfKey)
	}
}

// shrink halves the rows and bytes of the next claim, of which so many bytes are free: the last one took too long (CONTRACT
// C-35). adapt raises the rows again, and each claim that succeeds doubles the bytes.
func (c *claims) shrink(free int64) {
	c.rows, c.bytes = max(1, c.rows/2), max(1, min(c.bytes, free)/2)
}

// room reports whether a claim may be made, and for how many rows and bytes: the queue runs low, so that
// deliveries never wait for a claim, and neither write-backs nor bytes have piled up. When there is
// no room, changed is called as soon as there is; call room again after longSupply, since topics may be slow by
// then. One claim of several topics takes half of the bytes at most: they may all be of one. When they are short they are for one topic
// with nothing in flight.
func (in *intake) room() (rows int, bytes int64, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := time.Now()
	in.queue.noteSlow(in.topics.alone(), now)
	if ok = in.signals.await(in.hasRoom); ok {
		in.claims.adapt(now)
	} else {
		in.observe(now)
	}
	if in.claims.forFewRows = in.topics.fair && !ok && in.account.hasRoom(); in.claims.forFewRows {
		ok = true
	}
	bytes = in.account.maxBytes - in.account.bytes
	switch {
	case in.topics.alone():
		bytes -= in.account.spare()
	case bytes > in.account.spare():
		bytes = min(bytes/2, bytes-in.account.spare())
	}
	return in.claims.rows, max(1, min(bytes, in.claims.bytes)), ok
}

func (in *intake) hasRoom() bool { return in.runsLow() && in.account.hasRoom() }

// runsLow reports whether no more than lowWater rows are queued. Those of a slow topic may stay for long: no more
// than lowShare of them count.
func (in *intake) runsLow() bool {
	left, share := in.claims.lowWater(), in.lowShare()
	for _, t := range in.queue.waiting {
		if t.queue.slow {
			left -= t.queue.ready(share)
		} else {
			left -= t.queue.ready(left + 1)
		}
		if left < 0 {
			return false
		}
	}
	return true
}

// lowShare is a topic's share of lowWater. All shares together do not exceed it: so slow topics do not keep another from
// being claimed.
func (in *intake) lowShare() int { return in.claims.lowWater() / max(1, in.account.busyTopics) }

// load is what the topics share now.
func (in *intake) load(now time.Time) load {
	in.topics.rates.lapse(now)
	own := 0
	if in.topics.alone() {
		for _, t := range in.queue.waiting {
			own += len(t.queue.rows)
		}
	}
	rate := in.topics.rates.all.supply(len(in.account.inFlight)-in.account.inDelivery, own, now)
	return load{now: now, rate: rate, alone: in.topics.alone(), rows: in.account.maxRows - len(in.account.inFlight), bytes: in.account.maxBytes - in.account.bytes, spare: in.account.spare(), lowShare: max(1, in.lowShare()), successes: in.topics.dest.successes, unwritten: in.topics.round.unwritten}
}

// request is a claim of n rows, as far as the flight decides about it: see topics.shares and load.unwritten. When topics are passed
// over because they are full, changed is called as soon as one may have more. writes is a number that changes when rows are
// written back.
func (in *intake) request(n int, unwritten map[string]bool) (req dispatcher.ClaimRequest, writes int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.topics.round.unwritten = unwritten
	l := in.load(time.Now())
	in.topics.rates.held = in.topics.rates.held && in.topics.round.left > 0 || in.topics.rates.limited() && slices.ContainsFunc(in.topics.round.topics, func(t *topic) bool {
		a := t.allot(l)
		return a.by == byRate && a.n == 0
	})
	shares := in.topics.shares(n, l)
	if len(shares) == 0 {
		in.observe(l.now)
	}
	if in.topics.fair {
		for i, share := range shares {
			shares[i].Except = in.topics.get(share.Topic).calls.requests.waiting(l.now)
		}
	}
	if in.signals.awaited = nil; in.claims.forFewRows {
		for i := range shares { // the flood of a tenant is left out
			shares[i].Except = append(shares[i].Except, in.topics.get(shares[i].Topic).queue.withTheirShare(in.lowShare())...)
		}
		in.signals.await(in.hasRoom)
	} else if len(in.topics.round.full) > 0 {
		in.signals.await(func() bool {
			l := in.load(time.Now())
			return slices.ContainsFunc(in.topics.round.full, func(t *topic) bool { return !t.allot(l).hasItsShare() })
		})
	}
	req = dispatcher.ClaimRequest{
		Shares: shares, Skip: in.topics.refused.ids(l.now),
		Fit: l.isShort() && len(shares) == 1 && !in.topics.round.mayBeLarge(in.topics.get(shares[0].Topic), l.now),
	}
	if in.queue.keys.lines != nil {
		req.Keys = &dispatcher.KeyOrder{PerKey: max(in.claims.ofKey, in.claims.leastOfKey), BlockOnDead: in.onDead == dispatcher.OnDeadBlock}
	}
	return req, in.account.writes
}

// permit is topics.permit now. It begins a probe that is due, which wakes the loop when it ends.
func (in *intake) permit(probe func()) (wait time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	wait, due := in.topics.permit(in.load(time.Now()))
	if due {
		probe()
	}
	return wait
}

// hurry is topics.hurry now.
func (in *intake) hurry() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.topics.hurry(in.load(time.Now()))
}

// passedOver reports whether this round passed over topics or tenants because they have their share, or for a rate limit.
func (in *intake) passedOver() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.topics.round.full) > 0 || in.claims.forFewRows || in.topics.rates.held
}

// isStale is topics.stale now.
func (in *intake) isStale(after time.Duration) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.topics.stale(time.Now(), after)
}

// listTopics notes the topics that have rows, which it took so long to list.
func (in *intake) listTopics(names []string, took time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	was := in.topics.alone()
	in.topics.round.listingTook = took
	in.topics.listed(names, time.Now())
	in.topics.rates.held = in.topics.rates.held && len(names) > 0 // without topics no claim follows
	if in.topics.alone() && !was {
		in.signals.work.Broadcast()
	}
}

// newRow takes a claimed event into the account.
func (in *intake) newRow(e *dispatcher.Event, at, started time.Time) *row {
	e.ClaimedAt = at
	r := &row{event: e, age: at.Sub(e.CreatedAt), faulty: at.Sub(e.FaultSince), claimedAt: started, safeUntil: safeUntil(started, in.lease), bytes: sizeOf(e)}
	r.before.maxBatch = in.faults[e.ID].maxBatch
	in.account.add(r)
	return r
}

// add queues the events of a claim that was sent at started, for which request returned writes. It returns the rows
// that must be released: all of them once the flight is closed or paused, those of a topic that was paused during the
// claim, those behind an unreadable one of their key, and those of a topic from the first event on whose type is not
// admitted. unreadable are the rows of claimed.Unreadable, and stops the types of those first events, by topic.
func (in *intake) add(claimed dispatcher.Claimed, started time.Time, writes int) (refused, unreadable []*row, stops map[string]string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.observe(time.Now())
	in.claims.bytes = min(2*in.claims.bytes, in.account.maxBytes)
	if claimed.Leased() >= in.claims.rows {
		in.claims.filledAt = time.Now()
	}
	for _, u := range claimed.Unreadable {
		unreadable = append(unreadable, in.newRow(u.Event, claimed.At, started))
	}
	var t *topic // of the last row: those of a topic come together
	postpone := func() {
		if t == nil {
			return
		}
		rows := (*flight)(in).postpone(t, time.Now())
		if refused = append(refused, rows...); len(rows) > 0 && len(t.queue.rows) == 0 {
			(*flight)(in).waitFor(t, time.Duration(len(rows))*postponedWait, time.Now())
		}
	}
	for _, e := range claimed.Events {
		r := in.newRow(e, claimed.At, started)
		if t == nil || t.name != e.Topic {
			postpone()
			t = in.topics.get(e.Topic)
		}
		if in.entry.stops(e, &stops) || in.entry.closed || in.entry.paused || in.topics.topicPaused(t) && !t.turn.halfOpen || in.queue.keys.isAfter(e, claimed.Unreadable) {
			refused = append(refused, r)
			continue
		}
		in.account.enter(r, t)
		if in.queue.keys.join(r) {
			in.queue.add(r)
			in.signals.work.Signal()
		}
	}
	postpone()
	if in.claims.keysWait = len(claimed.KeysWaiting) > 0; in.claims.keysWait && in.account.writes != writes {
		in.claims.keysWait = false // what they wait for was written while the claim was under way
		in.signals.changed()
	}
	return refused, unreadable, stops
}

// claimed notes what a claim brought: see topics.claimed.
func (in *intake) claimed(shares []dispatcher.Share, byTopic map[string]int, stops map[string]string, out *dispatcher.Claimed) (more bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := time.Now()
	short := in.load(now).isShort()
	for _, share := range shares {
		t := in.topics.get(share.Topic)
		if byTopic[share.Topic] == 0 && short {
			continue // it is not known to be idle: its row may have had no room
		}
		t.found(share, byTopic[share.Topic], slices.Contains(out.KeysWaiting, share.Topic), slices.Contains(out.OverRate, share.Topic), now)
	}
	return in.topics.claimed(shares, byTopic, stops, now)
}

// claimFailed notes that a claim failed: see topics.claimFailed. After one that took too long the next one is smaller.
func (in *intake) claimFailed(shares []dispatcher.Share, err error) (refused, failed error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if dispatcher.IsTooSlow(err) {
		in.claims.shrink(in.account.maxBytes - in.account.spare() - in.account.bytes)
	}
	return in.topics.claimFailed(shares, err, time.Now())
}

// idle is how long to wait after a claim that left nothing.
func (in *intake) idle(p *pace, pollInterval time.Duration) time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := time.Now()
	if p.woken && in.topics.stale(now, listSoon) {
		in.topics.round.listedAt, p.woken = time.Time{}, false
		return 0
	}
	wait := p.idle(now.Sub(p.foundAt), pollInterval)
	if !in.topics.round.fixed { // an event of a topic that is not known waits no longer than others
		wait = min(wait, max(p.least, in.topics.round.listedAt.Add(pollInterval).Sub(now)))
		if p.woken {
			wait = min(wait, listSoon)
		}
	}
	if in.claims.keysWait && in.account.rows > 0 { // a write-back wakes the loop: until then mostly nothing is to be had
		wait = max(wait, flowing*p.least)
	}
	if again := in.topics.again(in.load(now)); !again.IsZero() {
		wait = min(wait, again.Sub(now))
	}
	return wait
}

// empty reports whether every row is written back. If not, the claim loop is woken as soon as it is so.
func (in *intake) empty() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.signals.await(func() bool { return in.account.rows == 0 })
}
