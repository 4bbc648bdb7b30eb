package main

import "time"

// explain checks that each delivery that the consumer confirmed was acked, unless a fault prevented it: a duplicate
// follows only such a delivery. Tokens rise: a request that arrives after one with a higher token was delayed by a
// fault (CONTRACT C-27).
func (l *ledger) explain(h *history, e *event) {
	seen := map[int64]time.Time{}
	highest := int64(0)
	for _, d := range e.deliveries {
		held := e.held(d.Token, d.At)
		before, repeated := seen[d.Token]
		if repeated {
			held.from = before.Add(-h.lease) // its claim is not older
		} else if held.from.IsZero() { // the database forgot the claim
			held.from, held.to = d.At.Add(-h.lease), d.At.Add(forgets)
		}
		until := latest(held.to, d.At)
		crashed := h.overlapping(held.from.Add(-forgets), until, func(f injected) bool { return f.kind == crash || f.kind == lag })
		kept := func(f injected) bool {
			return (f.kind == kill || f.kind == freeze || f.kind == nap) && f.worker == held.worker ||
				f.kind == limited || f.kind == reject || // acks are refused, or later than the lease
				f.kind == choke || f.kind == loop || // its claim locks rows, also those that it passes by: others' acks wait for them
				f.kind == jump || // leases seem to be over
				f.kind == hang || f.kind == mute || f.kind == restart || f.kind == stall
		}
		if d.Token < highest && crashed == "" && h.overlapping(held.from, until, kept) == "" {
			l.violate(tokenFell, e, "the consumer confirmed %d after %d", d.Token, highest)
		}
		switch {
		case repeated:
			l.violate(tokenTwice, e, "%d", d.Token)
		case held.acked && !repeated:
		case crashed != "":
			l.explained[crashed]++
		default:
			cause := h.overlapping(held.from, held.to, kept)
			if cause == "" {
				l.violate(unexplained, e, "lease %d of worker %s, from %s to %s", d.Token, held.worker, held.from.Format(clockTime), held.to.Format(clockTime))
				continue
			}
			l.explained[cause]++
		}
		seen[d.Token], highest = d.At, max(highest, d.Token)
	}
}

// checkLeases checks that each lease number is that of one claim: of one worker, in one transaction.
func (l *ledger) checkLeases(h *history) {
	claims := map[int64]move{}
	for _, e := range h.events {
		for _, m := range e.moves {
			if m.to.status != "processing" {
				continue
			}
			other, known := claims[m.to.lease]
			if known && (other.to.worker != m.to.worker || other.tx != m.tx) {
				l.violate(leaseTwice, e, "lease %d of worker %s at %s, and of worker %s at %s", m.to.lease,
					m.to.worker, m.began.Format(clockTime), other.to.worker, other.began.Format(clockTime))
			}
			claims[m.to.lease] = m
		}
	}
}

// forgets is how much of its last moments a crash of the database may undo, or of those before a standby lags: claims and
// acks do not wait for the disk.
const forgets = time.Second

// overlapping is the kind of a fault that overlaps a time and explains a loss; "" for none.
func (h *history) overlapping(from, to time.Time, explains func(injected) bool) kind {
	for _, f := range h.faults {
		if explains(f) && f.start.Before(to) && from.Before(f.end) {
			return f.kind
		}
	}
	return ""
}

const clockTime = "15:04:05.000"
