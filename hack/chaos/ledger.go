package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// ledger is the verdict on a run.
type ledger struct {
	committed, rolledBack, copies, delivered, duplicates, replays, withdrawn, expired int
	// tried are the events that were still tried when the run ended, and forgotten those that a failover took along.
	tried, forgotten int
	dead             map[string]int
	// explained counts the deliveries whose outcome was lost to a fault, by its kind.
	explained map[kind]int
	// busiest is the most requests within ten seconds.
	busiest int
	// waits are how long events waited that no fault hit, by topic.
	waits      map[string][]time.Duration
	violations []violation
}

// violation is a rule that was broken, and the event with which.
type violation struct {
	rule  string
	event *event // nil when it is not about one
	what  string
}

// rules that a run can break.
const (
	lost        = "lost"
	ghost       = "delivered without a commit"
	unlawful    = "illegal transition"
	doubleAck   = "a lease acked twice"
	hollowAck   = "acked without a delivery"
	overspent   = "more attempts than allowed"
	early       = "claimed again before the lease was over"
	abandoned   = "left to its lease by a dispatcher that was stopped in order"
	leaseTwice  = "one lease number for two claims"
	tokenFell   = "fencing token did not rise"
	tokenTwice  = "fencing token published twice"
	unexplained = "delivery without ack, and no fault explains it"
	inverted    = "keys out of order"
	starved     = "dead of an outage"
	neverSent   = "dead, and never sent"
	misjudged   = "dead for another reason than its own"
	unrecorded  = "dead letters and dead events differ"
	stoodStill  = "others stood still"
	tooFast     = "faster than the rate limit"
	heldUp      = "waited, and no fault hit it"
	untrue      = "withdrawal is not so"
	mistimed    = "expired before its time, or claimed after it"
	miscopied   = "not copied to each destination once"
	broken      = "process"
)

// balance decides.
func balance(h *history) *ledger {
	l := &ledger{dead: map[string]int{}, explained: map[kind]int{}}
	for _, what := range h.wrong {
		l.violate(broken, nil, "%s", what)
	}
	for _, id := range slices.SortedFunc(maps.Keys(h.events), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }) {
		e := h.events[id]
		l.account(h, e)
		l.followRow(h, e)
		l.checkStops(h, e)
		l.explain(h, e)
		l.checkDeadLetters(h, e)
		l.checkCopies(h, e)
	}
	l.checkLeases(h)
	l.checkOthers(h)
	l.checkRate(h)
	l.checkWaits(h)
	if h.ordered {
		l.checkOrder(h)
	}
	return l
}

func (l *ledger) violate(rule string, e *event, format string, args ...any) {
	l.violations = append(l.violations, violation{rule, e, fmt.Sprintf(format, args...)})
}

// account checks that a committed event arrived, is dead or withdrawn, and that no other arrived. One whose row was claimed in the last
// minute of the run is neither lost nor over: a topic of which only refused events are left is tried with a few of
// them at a time, however short the backoff is (CONTRACT C-32). One that a failover took along is over.
func (l *ledger) account(h *history, e *event) {
	if h.forgotten(e) {
		l.forgotten++
		return
	}
	if e.known && !e.committed || !e.known && len(e.moves) == 0 {
		l.rolledBack++
		if len(e.deliveries)+len(e.moves) > 0 {
			l.violate(ghost, e, "%d deliveries, %d transitions", len(e.deliveries), len(e.moves))
		}
		return
	}
	l.committed++
	if e.original != nil {
		l.copies++
	}
	if n := len(e.deliveries); n > 1 {
		l.duplicates += n - 1
	}
	l.replays += e.count(replay)
	if len(e.moves) == 0 {
		l.violate(lost, e, "committed, and it has no row")
		return
	}
	l.checkWithdrawal(h, e)
	switch last := e.moves[len(e.moves)-1]; {
	case last.verb == withdraw:
		l.withdrawn++
	case last.verb == expire:
		l.expired++
	case last.verb == ack && (len(e.deliveries) > 0 || h.isCopied(e)):
		l.delivered++
	case last.verb == toDead:
		l.dead[last.reason]++
	case slices.ContainsFunc(e.moves, func(m move) bool { return m.to.status == "processing" && m.at.After(h.over.Add(-settleWithin)) }):
		l.tried++
	default:
		l.violate(lost, e, "committed, and neither delivered nor dead")
	}
}

// checkWithdrawal checks that an event that is withdrawn was never sent, and that what a producer heard of it is so (CONTRACT C-17),
// unless a failover took the withdrawal along.
func (l *ledger) checkWithdrawal(h *history, e *event) {
	lagged := func(f injected) bool { return f.kind == lag }
	switch is := e.moves[len(e.moves)-1].verb == withdraw; {
	case is && (e.sent > 0 || len(e.deliveries) > 0):
		l.violate(untrue, e, "it is withdrawn, and was sent")
	case is && e.late:
		l.violate(untrue, e, "it is withdrawn, and a producer heard that it is too late")
	case !is && !e.taken.IsZero() && h.overlapping(e.taken, e.taken.Add(forgets), lagged) == "":
		l.violate(untrue, e, "a producer heard that it is withdrawn, at %s", e.taken.Format(clockTime))
	}
}

// followRow checks each transition, and each ack against what the consumer confirmed.
func (l *ledger) followRow(h *history, e *event) {
	acked := map[int64]bool{}
	token := int64(0)
	for i, m := range e.moves {
		if m.verb == illegal || i > 0 && !m.follows(e.moves[i-1]) {
			l.violate(unlawful, e, "%+v to %+v", m.from, m.to)
		}
		switch {
		case m.verb == reclaim && h.early(m):
			l.violate(early, e, "lease %d at %s, while the lease of %s ran until %s", m.to.lease, m.at, m.from.worker, m.from.until)
		case m.from.status != "processing" && m.to.status == "delivered", m.verb == ack:
			if acked[m.from.lease] {
				l.violate(doubleAck, e, "lease %d", m.from.lease)
			}
			acked[m.from.lease] = true
			if !h.isCopied(e) && !slices.ContainsFunc(e.deliveries, func(d delivery) bool { return d.Token == m.from.lease }) {
				l.violate(hollowAck, e, "lease %d", m.from.lease)
			}
		}
		if h.mistimed(e, m) {
			l.violate(mistimed, e, "%s at %s, its time is over at %s", m.verb, m.at.Format(clockTime), e.expires.Format(clockTime))
		}
		if m.to.status == "processing" && m.to.lease <= token {
			l.violate(tokenFell, e, "lease %d was claimed after %d", m.to.lease, token)
		}
		token = max(token, m.to.lease)
		if m.to.attempts > e.attemptLimit() {
			l.violate(overspent, e, "%d of %d", m.to.attempts, e.attemptLimit())
		}
	}
}

// early reports whether a row was claimed while its lease ran. A claim whose transaction began before the server's clock was
// set back goes by its own clock: its lease began then.
func (h *history) early(m move) bool {
	jumped := h.overlapping(m.began, m.at, func(f injected) bool { return f.kind == jump }) != ""
	return !m.from.until.Before(m.byClock) && (!jumped || !m.from.until.Before(m.to.until.Add(-h.lease)))
}

// mistimed reports whether an event was claimed when its time was over by the server's clock, or expired before that by the right one, unless
// it was claimed while the server's jumped: that harms nothing else (CONTRACT C-18).
func (h *history) mistimed(e *event, m move) bool {
	switch m.to.status {
	case "processing":
		return !e.expires.IsZero() && !m.began.Add(m.byClock.Sub(m.at)).Before(e.expires)
	case "expired":
		return e.expires.IsZero() || m.at.Before(e.expires) && h.overlapping(m.began, m.at, func(f injected) bool { return f.kind == jump }) == ""
	}
	return false
}

// follows reports whether a transition begins where the one before it ended.
func (m move) follows(last move) bool {
	a, b := m.from, last.to
	return a.status == b.status && a.attempts == b.attempts && a.lease == b.lease
}

// checkStops checks that a dispatcher that was stopped in order left nothing behind, unless its connections
// broke: then it may not know what it had claimed (CONTRACT C-30). An outcome that the database refuses is left
// to its lease in any case.
func (l *ledger) checkStops(h *history, e *event) {
	for _, m := range e.moves {
		if m.verb != reclaim {
			continue
		}
		from := e.held(m.from.lease, m.at).from
		for _, f := range h.faults {
			excused := func(o injected) bool {
				return o.kind == crash || o.kind == lag || o.kind == jump || o.kind == cut || o.kind == bouncer || o.kind == stall || o.kind == reject || o.kind == limited || o.kind == veto && o.event == e.id
			}
			if f.kind == stop && f.worker == m.from.worker && f.start.Before(m.at) && h.overlapping(from.Add(-forgets), m.at, excused) == "" {
				l.violate(abandoned, e, "lease %d of worker %s, which was stopped at %s", m.from.lease, m.from.worker, f.start.Format(clockTime))
			}
		}
	}
}

// checkRate checks that no ten seconds had more requests than the rate limit allows, through kills, freezes and crashes
// (CONTRACT C-36), unless the database's clock jumped, or the consumer stood still: then what was sent meanwhile arrives at once. A tenth is for
// what a busy machine sent a moment late, and for the processes that come and go.
func (l *ledger) checkRate(h *history) {
	var first int
	var until time.Time
	for last, at := range h.requests {
		for at.Sub(h.requests[first]) >= 10*time.Second {
			first++
		}
		excused := func(f injected) bool { return f.kind == jump || f.kind == hang } // after a jump live processes seem to be gone
		if n := last - first + 1; n > l.busiest && h.overlapping(h.requests[first].Add(-time.Second), at, excused) == "" {
			l.busiest, until = n, at
		}
	}
	if h.limit > 0 && l.busiest > h.limit*11 {
		l.violate(tooFast, nil, "%d requests in the 10 s up to %s, of %d a second", l.busiest, until.Format(clockTime), h.limit)
	}
}

// checkOrder checks the first deliveries of each key (CONTRACT C-50): when an event arrives first, each
// earlier one of its key that was committed when this one was claimed has arrived, or is dead.
func (l *ledger) checkOrder(h *history) {
	keys := map[string][]*event{}
	for _, e := range h.events {
		if e.key != "" && e.committed && !h.forgotten(e) {
			line := e.line()
			if e.original != nil { // of one topic: those of several have no order
				line += " " + e.original.topic
			}
			keys[line] = append(keys[line], e)
		}
	}
	for _, events := range keys {
		slices.SortFunc(events, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
		var last time.Time // when the earlier ones were all over
		for i, e := range events {
			if arrived := e.arrived(); !arrived.IsZero() && last.After(arrived) {
				l.checkEarlier(h, e, events[:i])
			}
			last = latest(last, e.over())
		}
	}
}

func (l *ledger) checkEarlier(h *history, e *event, earlier []*event) {
	claimed, arrived := e.claimed(), e.arrived()
	undone := e.held(e.deliveries[0].Token, arrived).from.IsZero() // by a crash or a failover
	if undone && e.original != nil {
		return // so may be its original's
	} else if undone {
		claimed = arrived.Add(-h.lease)
	}
	failedOver := undone && h.overlapping(arrived, arrived.Add(forgets), func(f injected) bool { return f.kind == lag }) != ""
	for _, other := range earlier {
		if other.committedAt.IsZero() || !other.committedAt.Before(claimed) {
			continue // two producers of one key, side by side, have no order
		}
		if failedOver && (other.arrived().IsZero() || other.sent >= other.attemptLimit()) {
			continue // the failover may have undone that it was dead, too: with its last attempt, when it arrived later
		}
		if over := other.over(); over.After(e.arrived()) {
			l.violate(inverted, e, "key %q: seq %d arrived at %s, and seq %d (%s) arrived or was dead at %s", e.key, e.seq,
				e.arrived().Format(clockTime), other.seq, other.id, over.Format(clockTime))
		}
	}
}

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
