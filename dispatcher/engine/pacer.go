package engine

import (
	"math"
	"time"
)

// pacer finds how many calls of the sink a topic should have at once: as many as deliver more, and no more
// (CONTRACT C-38). It is pure: times are passed in, and flight serializes the calls.
//
//	rising ──more calls deliver more──▶ rising ──they do not──▶ holding
//	holding ──now and then──▶ rising, lowering ──▶ holding
//	holding ──calls deliver much less──▶ falling ──fewer calls deliver more each──▶ holding
//
// A destination that refuses or times out lowers the limit at once, in each phase. What counts is what a call delivers
// a second, compared with the same destination's a moment ago: calls of different destinations share no scale. So the
// yield of a call is the logarithm of its events a second. When the limit rises from a to b, the rate rises by
// ln(b/a) plus the change of the yield; the gain is that relative to ln(b/a): 1 where the calls do not hinder
// each other, 0 where they only wait for each other.
type pacer struct {
	limit int
	most  int // the bound of limit
	peers int // pacers that may share the destination, this one included: of topics and processes
	live  int // processes with a pacer of the topic, this one included

	phase phase
	from  int     // the limit before the experiment under way, or before the fall
	step  float64 // by what part the next rise raises
	lower bool    // the next experiment lowers
	shy   bool    // the last rise went too far
	holds int     // windows until then
	base  yields  // at the limit that is compared with
	tried yields  // at the limit under test
	tries int     // windows of it

	// The window under way. A call counts where it began and ended in one window, or took longer than a window: the same
	// part of the short and of the long ones in each, whatever the limit.
	window  yields
	width   time.Duration
	at      time.Time // when it began, or will
	settled time.Time // when the limit's last change has shown: calls that began before yield what another limit made of them
	since   time.Time // when the limit changed last: faults of calls that began before are of another limit
	calls   int
	faults  int
	usual   int // calls of the last window
	running int
	noted   time.Time
	area    float64 // call-seconds

	peak float64 // the best yield of late

	good    int // the limit of the last window without trouble
	ceiling int // a limit at which the destination refused; 0 for none
	until   time.Time
	keep    time.Duration
	found   bool // more calls did not deliver more
}

type phase int

const (
	rising phase = iota
	holding
	lowering
	falling
)

const (
	firstLimit  = 4
	shortWindow = 250 * time.Millisecond // while it rises from the start
	longWindow  = time.Second
	mostWindow  = 30 * time.Second
	windowCalls = 20
	fewCalls    = 4
	holdWindows = 5
	mostTries   = 12   // windows of an experiment
	leastStep   = 0.1  // of an experiment, where little noise is in the yields
	firstNoise  = 0.15 // of the yields that the first rise is compared with
	mostStep    = 0.5  // where there is much
	sure        = 2.0  // standard errors by which a gain is known
	cutTo       = 0.7  // of the limit, when the destination refuses
	refusedPart = 0.02 // of the calls that are refused or time out without a cut
	fewTries    = 3    // windows of an experiment below the ceiling, where too many calls show at once
	fellBy      = 0.25 // of the yield's logarithm
	tooMuch     = 0.2  // less yield than lately: peers have too many calls
	limitedPart = 0.9  // of the limit that calls must use to say something of it
	keepCeiling = 5 * time.Second
	mostKeep    = time.Minute
	refills     = 2 * time.Second // after a refusal fewer calls are refused too, until a bucket has filled again
)

func newPacer(most int) *pacer {
	return &pacer{limit: min(firstLimit, most), most: most, peers: 1, live: 1, step: 1, width: shortWindow, keep: keepCeiling / 2}
}

// bound sets the most calls of a process, of which so many are live. What was found is divided again.
func (p *pacer) bound(most, live int, now time.Time) decision {
	limit := min(p.limit, most)
	if p.found {
		limit = min(most, max(1, p.limit*p.live/live))
	}
	p.most, p.live = most, live
	if p.limit == limit {
		return unchanged
	}
	found := p.found && limit < most
	p.hold(limit, now)
	p.found = found
	return bounded
}

// began notes that a call begins.
func (p *pacer) began(now time.Time) {
	p.note(now)
	p.running++
}

func (p *pacer) note(now time.Time) {
	if from := later(p.noted, p.at); now.After(from) {
		p.area += float64(p.running) * now.Sub(from).Seconds()
	}
	p.noted = now
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// left notes that a call ended.
func (p *pacer) left(now time.Time) {
	p.note(now)
	p.running--
}

// ended notes the outcome of a call that ended: how many of its events the destination took or refused for their own fault, and whether
// it reported a fault of its own or did not respond in time.
func (p *pacer) ended(began time.Time, took time.Duration, events int, fault bool, now time.Time) decision {
	p.note(now)
	if p.at.IsZero() {
		p.at = began
	}
	if began.Before(p.since) {
		return unchanged
	}
	p.calls++
	if fault {
		if p.faults++; p.faults >= 3 && float64(p.faults) > refusedPart*float64(max(p.calls, p.usual)) {
			return p.refuse(now)
		}
	}
	if events > 0 && !began.Before(p.settled) && (!began.Before(p.at) || took > p.width) {
		p.window.add(events, took)
	}
	since := now.Sub(p.at)
	if p.phase != falling && p.base.n > 0 && p.window.n >= windowCalls && p.fallen(p.window, 2*fellBy) {
		return p.fall(now)
	}
	if since < p.width || p.window.n < windowCalls && (since < mostWindow || p.window.n < fewCalls) {
		return unchanged
	}
	return p.close(now)
}

// close ends a window.
func (p *pacer) close(now time.Time) decision {
	w, limited := p.window, p.area >= limitedPart*float64(p.limit)*now.Sub(p.at).Seconds()
	clean := p.faults == 0
	p.usual = p.calls
	p.open(now)
	if !limited {
		if p.phase == holding || p.from == 0 {
			return unchanged
		}
		return p.back(unchanged, now)
	}
	if p.good = p.limit; clean && p.ceiling > 0 && now.After(p.until) {
		p.ceiling = 0
	}
	switch p.phase {
	case holding:
		return p.held(w, now)
	case falling:
		return p.fell(w, now)
	}
	if p.from == 0 { // the first windows
		p.base.merge(w, 1)
		if p.tries++; p.base.apart(p.base) > firstNoise && p.tries < mostTries {
			return unchanged
		}
		p.width, p.peak = max(shortWindow, 4*w.typical()), p.base.mean()
		return p.rise(now)
	}
	p.tried.merge(w, 1)
	p.tries++
	return p.judge(now)
}

// open begins a window.
func (p *pacer) open(at time.Time) {
	p.window, p.at, p.calls, p.faults, p.area = yields{}, at, 0, 0, 0
}

// set changes the limit. Calls that begin before the change has shown say nothing of it.
func (p *pacer) set(limit int, phase phase, now time.Time) {
	p.limit, p.phase = max(1, min(limit, p.most)), phase
	p.tried, p.tries = yields{}, 0
	p.since, p.settled = now, now.Add(p.base.typical())
	p.open(p.settled)
}

// hold begins to measure at a limit.
func (p *pacer) hold(limit int, now time.Time) {
	p.set(limit, holding, now)
	p.width = max(longWindow, 4*p.base.typical())
	p.base, p.holds, p.from = yields{}, holdWindows, p.limit
}

// back ends an experiment: the limit is what it was.
func (p *pacer) back(why decision, now time.Time) decision {
	p.set(p.from, holding, now)
	p.holds = holdWindows
	return why
}

func (p *pacer) held(w yields, now time.Time) decision {
	if p.base.n > 0 && p.fallen(w, fellBy) {
		return p.fall(now)
	}
	p.base.merge(w, 0.8)
	if p.holds--; p.holds > 0 && !p.below() {
		return unchanged
	}
	p.step = min(mostStep, max(leastStep, math.Exp(5*p.base.apart(p.base))-1))
	if p.shy { // without it calls of two kinds deliver 4 % less
		p.step /= 2
	}
	lower := p.lower || p.crowded()
	p.lower = !lower
	if lower && p.limit > 1 && !p.below() {
		p.from = p.limit
		p.set(min(p.limit-1, int(math.Round(float64(p.limit)/(1+p.step)))), lowering, now)
		return probed
	}
	return p.rise(now)
}
