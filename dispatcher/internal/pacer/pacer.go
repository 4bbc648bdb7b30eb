// Package pacer finds how many calls of a destination at once deliver the most (CONTRACT C-38). It is pure: it has neither a
// clock nor a lock.
package pacer

import (
	"math"
	"time"
)

// Pacer finds how many calls of the sink a topic should have at once: as many as deliver more, and no more
// (CONTRACT C-38). It is pure: times are passed in, and its owner serializes the calls.
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
type Pacer struct {
	limit     int
	bound     int // the bound of limit
	sharers   int // pacers that may share the destination, this one included: of topics and processes
	processes int // with a pacer of the topic, this one included

	phase      phase
	experiment experiment
	base       yields // at the limit that is compared with
	bestYield  float64
	window     window
	ceiling    ceiling
	refusals
	good  int  // the limit of the last window without trouble
	found bool // more calls did not deliver more
}

// experiment is the try of another limit that is under way, and what decides the next one.
type experiment struct {
	from   int     // the limit before it, or before the fall
	step   float64 // by what part the next rise raises
	lowers bool    // the next one lowers
	halved bool    // the last rise went too far: the next step is half as large
	pause  int     // windows until then
	tried  yields  // at the limit under test
	tries  int     // windows of it
}

// ceiling is a limit at which the destination refused.
type ceiling struct {
	calls int // 0 for none
	until time.Time
	keep  time.Duration // how long the next one holds
}

type phase int

const (
	rising phase = iota
	holding
	lowering
	falling
)

const (
	// FirstLimit is the limit of a new pacer, unless its bound is lower.
	FirstLimit = 16

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
	tooMuch     = 0.2  // less yield than lately: the other pacers have too many calls
	limitedPart = 0.9  // of the limit that calls must use to say something of it
	keepCeiling = 5 * time.Second
	mostKeep    = time.Minute
	mostSharers = 16
	halfCut     = 3                // the cut for refusals that halves the limit, to compare
	keepSpree   = 10 * time.Second // between two cuts of one spree
	keepNoise   = time.Minute      // and for slow calls so many times of theirs:
	noiseCalls  = 20               //
	mostNoise   = 0.5              // a destination that refuses more has too much to do
	enoughLow   = 12.0             // refusals with half of the calls that decide
	refills     = 2 * time.Second  // after a refusal fewer calls are refused too, until a bucket has filled again
)

// New returns the pacer of a topic in one of several processes. most bounds the calls of this one.
func New(most, processes int) *Pacer {
	return &Pacer{
		limit: min(FirstLimit, most), bound: most, sharers: 1, processes: processes,
		experiment: experiment{step: 1}, window: window{width: shortWindow}, ceiling: ceiling{keep: keepCeiling / 2},
	}
}

// Part returns the calls that each of several processes may have of most calls in all: one at least.
func Part(most, processes int) int { return max(1, most/processes) }

// Limit is how many calls the topic should have at once.
func (p *Pacer) Limit() int { return p.limit }

// SetSharers says how many pacers may share the destination, this one included: those of other topics and processes. At
// most 16 count.
func (p *Pacer) SetSharers(n int) { p.sharers = max(1, min(mostSharers, n)) }

// Bound sets how many calls this process may have at most, and how many processes there are. The limit that was found is
// divided again, and the search begins again there.
func (p *Pacer) Bound(most, processes int, now time.Time) Decision {
	limit := min(p.limit, most)
	if p.found {
		limit = min(most, max(1, p.limit*p.processes/processes))
	}
	p.bound, p.processes = most, processes
	if p.limit == limit {
		return Unchanged
	}
	p.spree = spree{}
	if !p.found {
		p.hold(limit, now)
		return Bounded
	}
	p.search(limit, now)
	return Bounded
}

// Began notes that a call begins.
func (p *Pacer) Began(now time.Time) { p.window.callBegan(now) }

// Left notes that a call is over, whatever came of it.
func (p *Pacer) Left(now time.Time) { p.window.callEnded(now) }

// Ended notes the outcome of a call that ended: how many of its events the destination took or refused for their own fault, and whether
// it reported a fault of its own or did not respond in time.
func (p *Pacer) Ended(began time.Time, took time.Duration, events int, fault bool, now time.Time) Decision {
	p.window.pass(now)
	if p.window.at.IsZero() {
		p.window.at = began
	}
	if began.Before(p.window.changed) {
		return Unchanged
	}
	p.window.calls++
	if fault {
		if p.window.faults++; p.noise.exceeded(&p.window, now) {
			return p.refused(took, now)
		}
	}
	if events > 0 && !began.Before(p.window.settled) && (!began.Before(p.window.at) || took > p.window.width) {
		p.window.yields.add(events, took)
	}
	since := now.Sub(p.window.at)
	if p.phase != falling && p.base.n > 0 && p.window.yields.n >= windowCalls && p.fallen(p.window.yields, 2*fellBy) {
		return p.fall(now)
	}
	if since < p.window.width || p.window.yields.n < windowCalls && (since < mostWindow || p.window.yields.n < fewCalls) {
		return Unchanged
	}
	return p.close(now)
}

// close ends a window.
func (p *Pacer) close(now time.Time) Decision {
	w, limited := p.window.yields, p.window.used(p.limit, now)
	clean := p.window.faults == 0 || float64(p.window.faults) <= p.noise.explains(p.window.calls, 0, now)
	p.window.lately.merge(sample{float64(p.window.calls), float64(p.window.faults)}, 0.8)
	p.spree.see(&p.window, 0)
	p.window.lastCalls = p.window.calls
	p.window.open(now)
	if p.spree.compares() {
		if d, known := p.compared(now); d != Unchanged || !known {
			return d
		}
	}
	if !limited {
		if p.phase == holding || p.experiment.from == 0 {
			return Unchanged
		}
		return p.back(Unchanged, now)
	}
	if p.good = p.limit; clean && p.ceiling.calls > 0 && now.After(p.ceiling.until) {
		p.ceiling.calls = 0
	}
	switch p.phase {
	case holding:
		return p.held(w, now)
	case falling:
		return p.fell(w, now)
	}
	if p.experiment.from == 0 { // the first windows
		p.base.merge(w, 1)
		if p.experiment.tries++; p.base.apart(p.base) > firstNoise && p.experiment.tries < mostTries {
			return Unchanged
		}
		p.window.width, p.bestYield = max(shortWindow, 4*w.typical()), p.base.mean()
		return p.rise(now)
	}
	p.experiment.tried.merge(w, 1)
	p.experiment.tries++
	return p.judge(now)
}

// set changes the limit. Calls that begin before the change has shown say nothing of it.
func (p *Pacer) set(limit int, phase phase, now time.Time) {
	p.limit, p.phase = max(1, min(limit, p.bound)), phase
	p.experiment.tried, p.experiment.tries, p.window.lately = yields{}, 0, sample{}
	p.window.changed, p.window.settled = now, now.Add(p.base.typical())
	p.window.open(p.window.settled)
}

// hold begins to measure at a limit.
func (p *Pacer) hold(limit int, now time.Time) {
	p.set(limit, holding, now)
	p.window.width = max(longWindow, 4*p.base.typical())
	p.base, p.experiment.pause, p.experiment.from = yields{}, holdWindows, p.limit
}

// back ends an experiment: the limit is what it was.
func (p *Pacer) back(why Decision, now time.Time) Decision {
	p.set(p.experiment.from, holding, now)
	p.experiment.pause = holdWindows
	return why
}

func (p *Pacer) held(w yields, now time.Time) Decision {
	if p.base.n > 0 && p.fallen(w, fellBy) {
		return p.fall(now)
	}
	p.base.merge(w, 0.8)
	if p.experiment.pause--; p.experiment.pause > 0 && !p.below() {
		return Unchanged
	}
	p.experiment.step = min(mostStep, max(leastStep, math.Exp(5*p.base.apart(p.base))-1))
	if p.experiment.halved { // without it calls of two kinds deliver 4 % less
		p.experiment.step /= 2
	}
	lower := p.experiment.lowers || p.overshared()
	p.experiment.lowers = !lower
	if lower && p.limit > 1 && !p.below() {
		p.experiment.from = p.limit
		p.set(min(p.limit-1, int(math.Round(float64(p.limit)/(1+p.experiment.step)))), lowering, now)
		return Probed
	}
	return p.rise(now)
}

// Decision is why a pacer changed its limit; empty for no change.
type Decision string

// The decisions: what the label reason of outbox_concurrency_decisions_total says.
const (
	Unchanged Decision = ""
	Gained    Decision = "gain"      // more calls deliver more
	NoGain    Decision = "no_gain"   // they did not: back
	Probed    Decision = "probe"     // an experiment begins
	Spared    Decision = "spare"     // fewer calls deliver as much
	Lost      Decision = "loss"      // fewer calls delivered less: back
	Slower    Decision = "slower"    // calls deliver much less than a moment ago
	Refused   Decision = "refused"   // the destination refused or timed out
	Recovered Decision = "recovered" // after an outage
	Bounded   Decision = "bound"     // other processes came, or went
	Unrelated Decision = "unrelated" // half of the calls are refused as often: back
)

// Decisions are all but Unchanged.
var Decisions = [...]Decision{Gained, NoGain, Probed, Spared, Lost, Slower, Refused, Recovered, Bounded, Unrelated}
