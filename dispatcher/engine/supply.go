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
	// firstClaim is the most rows of a claim before that is known.
	firstClaim = 100
)

// room reports whether a claim may be made, and for how many rows and bytes: the queue runs low, so that
// deliveries never wait for a claim, and neither write-backs nor bytes have piled up. When there is
// no room, changed is called as soon as there is; call room again after longSupply, since topics may be slow by
// then. One claim of several topics takes half of the bytes at most: they may all be of one.
func (f *flight) room() (rows int, bytes int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, t := range f.waiting {
		t.slow = !f.alone() && now.Sub(t.queued[0].claimedAt) > longSupply
	}
	if ok = f.await(f.hasRoom); ok {
		f.adapt(now)
	} else {
		f.noRoom(now)
	}
	if f.crowded = f.fair && !ok && f.rows <= f.maxRows && f.bytes < f.maxBytes; f.crowded {
		ok = true
	}
	bytes = f.maxBytes - f.bytes
	if f.alone() {
		bytes -= f.spare()
	} else {
		bytes /= 2
	}
	return f.claimRows, max(1, min(bytes, f.claimBytes)), ok
}

func (f *flight) hasRoom() bool { return f.runsLow() && f.rows <= f.maxRows && f.bytes < f.maxBytes }

// spare is the bytes that a topic which is alone leaves for one that may come.
func (f *flight) spare() int64 { return f.maxBytes / 8 }

// runsLow reports whether no more than lowWater rows are queued. Those of a slow topic may stay for long: no more
// than lowShare of them count.
func (f *flight) runsLow() bool {
	left, share := f.lowWater(), f.lowShare()
	for _, t := range f.waiting {
		if t.slow {
			left -= min(len(t.queued), share)
		} else {
			left -= len(t.queued)
		}
		if left < 0 {
			return false
		}
	}
	return true
}

// lowWater is the number of queued rows below which the next claim is due: half a claim, or a whole one when
// claims have reached the batch size.
func (f *flight) lowWater() int {
	if f.claimRows == f.batch {
		return f.claimRows
	}
	return f.claimRows / 2
}

// lowShare is a topic's share of lowWater. All shares together do not exceed it: so slow topics do not keep another from
// being claimed.
func (f *flight) lowShare() int { return f.lowWater() / max(1, f.inUse) }

// load is what the topics share now.
func (f *flight) load(now time.Time) load {
	f.rates.lapse(now)
	own := 0
	if f.alone() {
		for _, t := range f.waiting {
			own += len(t.queued)
		}
	}
	rate := f.rates.all.supply(len(f.inFlight)-f.begun, own, now)
	return load{now: now, rate: rate, alone: f.alone(), rows: f.maxRows - len(f.inFlight), bytes: f.maxBytes - f.bytes, spare: f.spare(), lowShare: max(1, f.lowShare()), successes: f.successes}
}

// shares divides a claim of n rows among the topics: see topics.shares and load.unwritten. When topics are passed over
// because they are full, changed is called as soon as one may have more.
func (f *flight) shares(n int, unwritten map[string]bool) []dispatcher.Share {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.load(time.Now())
	l.unwritten = unwritten
	if l.rate.by == byRate && l.rate.rows == 0 {
		f.heldByRate(l.now)
	}
	f.rates.held = f.rates.held && f.left > 0 || f.rates.limited() && slices.ContainsFunc(f.turn, func(t *topic) bool {
		a := t.allot(l)
		return a.by == byRate && a.rows == 0
	})
	shares := f.topics.shares(n, l)
	if f.awaits = nil; f.crowded {
		f.leaveCrowd(shares)
		f.await(f.hasRoom)
	} else if len(f.full) > 0 {
		f.await(func() bool {
			l := f.load(time.Now())
			return slices.ContainsFunc(f.full, func(t *topic) bool { return !t.allot(l).hasItsShare() })
		})
	}
	return shares
}

// adapt fits the size of claims to the deliveries: it doubles after a full claim that lasted for less than
// shortSupply, up to the batch size, and halves after one that lasted for more than longSupply, down to what the
// deliveries take at once.
func (f *flight) adapt(now time.Time) {
	if f.filledAt.IsZero() {
		return
	}
	switch lasted := now.Sub(f.filledAt); {
	case lasted < shortSupply:
		f.claimRows = min(2*f.claimRows, f.batch)
	case lasted > longSupply:
		f.claimRows = max(f.claimRows/2, min(f.callRows, f.batch))
	}
	f.filledAt = time.Time{}
}

// shrink halves the rows and bytes of the next claim: the last one took too long (CONTRACT C-35). adapt raises the rows
// again, and each claim that succeeds doubles the bytes.
func (f *flight) shrink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimRows, f.claimBytes = max(1, f.claimRows/2), max(1, min(f.claimBytes, f.maxBytes-f.spare()-f.bytes)/2)
}

// permit is topics.permit now. It begins a probe that is due, which wakes the loop when it ends.
func (f *flight) permit(probe func()) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait, due := f.topics.permit(f.load(time.Now()))
	if due {
		probe()
	}
	return wait
}

// passedOver reports whether this round passed over topics or tenants because they have their share, or for a rate limit.
func (f *flight) passedOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.full) > 0 || f.crowded || f.rates.held
}

// isStale is topics.stale now.
func (f *flight) isStale(after time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stale(time.Now(), after)
}

// listTopics notes the topics that have rows, which it took so long to list.
func (f *flight) listTopics(names []string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.alone()
	f.took = took
	f.listed(names, time.Now())
	f.rates.held = f.rates.held && len(names) > 0 // without topics no claim follows
	if f.alone() && !was {
		f.work.Broadcast()
	}
}
