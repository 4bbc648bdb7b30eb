package main

import "time"

// checkRate checks that no ten seconds had more requests than the rate limit allows, through kills, freezes and crashes
// (CONTRACT C-36), unless the database's clock jumped. A tenth is for what a busy machine sent a moment late, and for the
// processes that come and go.
func (l *ledger) checkRate(h *history) {
	var first int
	var until time.Time
	for last, at := range h.requests {
		for at.Sub(h.requests[first]) >= 10*time.Second {
			first++
		}
		jumped := func(f injected) bool { return f.kind == jump } // then live processes seem to be gone
		if n := last - first + 1; n > l.busiest && h.overlapping(h.requests[first], at, jumped) == "" {
			l.busiest, until = n, at
		}
	}
	if h.limit > 0 && l.busiest > h.limit*11 {
		l.violate(tooFast, nil, "%d requests in the 10 s up to %s, of %d a second", l.busiest, until.Format(clockTime), h.limit)
	}
}
