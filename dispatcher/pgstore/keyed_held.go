package pgstore

import (
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// What a store remembers of the rows with keys that this worker holds: a key that waits for one of them is read again as soon as
// it is written back, and not before.

// mostHeld bounds the rows that are remembered: some are never written back. Beyond it all are forgotten.
const mostHeld = 100_000

// heldRow is a row with a key that this worker holds.
type heldRow struct {
	of  *passage
	key int64
}

// heldKey is how many rows of a key this worker holds, all of one claim.
type heldKey struct {
	lease int64
	rows  int
}

// hold notes a row that was claimed.
func (k *keyed) hold(p *passage, r row) {
	h := p.held[r.key]
	if h.lease != r.event.LeaseNumber {
		h = heldKey{lease: r.event.LeaseNumber}
	}
	h.rows++
	if len(k.rows) >= mostHeld {
		clear(k.rows)
	}
	p.held[r.key], k.rows[r.event.ID] = h, heldRow{p, r.key}
}

// written notes that this worker does not hold rows any more. Of a key that waited for the last of its rows the next ones are
// read by the next claim.
func (k *keyed) written(leases []dispatcher.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.rows) == 0 {
		return
	}
	for _, l := range leases {
		row, ok := k.rows[l.ID]
		p := row.of
		if !ok || p.held[row.key].lease != l.Number {
			continue
		}
		delete(k.rows, l.ID)
		if h := p.held[row.key]; h.rows > 1 {
			p.held[row.key] = heldKey{h.lease, h.rows - 1}
			continue
		}
		delete(p.held, row.key)
		if _, ok := p.keys[row.key]; ok {
			p.keys[row.key] = recall{time.Now(), recallAfter}
		}
	}
}

// recall has a key that was passed by read again after a wait, and not before this worker has written back what it holds of it.
func (p *passage) recall(hash int64, wait time.Duration, now time.Time) {
	r := recall{now.Add(wait), wait}
	if _, held := p.held[hash]; held {
		r.at = now.Add(recallUntil)
	}
	p.keys[hash] = r
}

// waitsForOwn reports whether rows are known to wait for others that this worker holds. Then a claim that finds nothing does not
// search on: it would be under way when these are written back.
func (p *passage) waitsForOwn() bool {
	for hash := range p.keys {
		if _, held := p.held[hash]; held {
			return true
		}
	}
	return false
}
