package pacer

import (
	"math"
	"time"
)

// What a pacer makes of refusals: it lowers the limit at once. Refusals that do not become rarer with half of the calls are
// none of the load: an event, a tenant or a place behind the destination is at fault. Their part is the noise that refusals are
// measured against.

// refusals are what a pacer knows of them.
type refusals struct {
	spree spree
	noise noise
	cut   bool // the limit was lowered for them, since more calls did not deliver more
}

// noise is the part of the calls that is refused however many there are.
type noise struct {
	part  float64
	until time.Time // it is learned again then
}

// explains is how many refusals of some calls lower nothing, with so many standard errors.
func (n noise) explains(calls int, errors float64, now time.Time) float64 {
	part := refusedPart
	if now.Before(n.until) {
		part += n.part
	}
	mean := part * float64(calls)
	return mean + errors*math.Sqrt(mean)
}

// exceeded reports whether more calls of a window are refused than the noise explains.
func (n noise) exceeded(w *window, now time.Time) bool {
	return w.faults >= 3 && float64(w.faults) > n.explains(max(w.calls, w.lastCalls), sure, now)
}

// spree is a run of cuts for refusals.
type spree struct {
	limit, back int  // before the first cut, and where it goes back to; 0 for none
	found       bool // more calls did not deliver more
	cuts        int
	took        time.Duration // a refusal
	from        time.Time     // when the last cut has shown
	until       time.Time     // it is over then, unless another cut comes
	high, low   sample        // before, and with half of the calls
}

// sample is how many calls were seen, and how many of them were refused.
type sample struct{ calls, faults float64 }

func (s *sample) merge(o sample, fade float64) {
	*s = sample{s.calls*fade + o.calls, s.faults*fade + o.faults}
}

// refused is what part of the calls was refused, with half a refusal more: a few calls without one prove little.
func (s sample) refused() float64 {
	return (s.faults + 0.5) / (s.calls + 1)
}

func (s sample) variance() float64 { return s.refused() * (1 - s.refused()) / (s.calls + 1) }

// compares reports whether half of the calls are to show what the refusals are of.
func (s *spree) compares() bool { return s.cuts >= halfCut }

// unrelated reports whether as large a part is refused with half of the calls. What most calls meet is the load's. Else the
// destination takes as many as before of fewer calls, and at most half as many are refused for each that it takes. Of the few calls
// of the begin it is the load's only where most are refused.
func (s *spree) unrelated(now time.Time) (unrelated, known bool) {
	shown := !now.Before(s.from.Add(longWindow))
	if s.limit <= FirstLimit {
		return s.low.refused() < mostNoise, shown && (s.low.faults >= enoughLow/2 || s.low.calls >= 10*enoughLow)
	}
	high, low := s.high.refused(), s.low.refused()
	apart := math.Sqrt(s.high.variance()/4 + s.low.variance())
	by := (low - high/(2-high)) / apart
	return by > 0 && low < min(mostNoise, high+2*apart), shown && (by < -1 || by > sure || s.low.faults >= enoughLow || s.low.calls*high >= 2*enoughLow)
}

// see adds a window's calls to the spree, but those that ended the count: they say nothing of the part. A window without
// refusals ends it: they were of what is over.
func (s *spree) see(w *window, but int) {
	seen := sample{float64(w.calls - but), float64(w.faults - but)}
	switch {
	case s.limit == 0 || w.at.Before(s.from):
	case s.compares():
		s.low.merge(seen, 1)
	case seen.faults == 0 && seen.calls*s.high.refused() > 6:
		*s = spree{}
	default:
		s.high.merge(seen, 1)
	}
}

// refused follows too many refusals.
func (p *Pacer) refused(took time.Duration, now time.Time) Decision {
	s, seen := &p.spree, sample{}
	if s.compares() {
		s.see(&p.window, 1)
		seen = s.low
		if d, known := p.compared(now); !known || d != Unchanged || p.limit == 1 {
			p.window.open(now)
			return d
		}
	}
	if s.limit == 0 || now.After(s.until) {
		*s = spree{limit: p.limit, back: p.limit, found: p.found && !p.cut, high: seen}
		if p.found && p.phase == rising {
			s.back = p.experiment.from
		}
		if p.noise.part > 0 && now.After(p.noise.until) { // it was known, and is compared at once
			s.high, s.cuts, p.noise.part = p.window.lately, halfCut-1, 0
		}
	}
	s.took, s.until = took, now.Add(max(keepSpree, 3*took))
	if s.cuts > 0 { // the first window may be of the time before
		s.see(&p.window, 1)
	}
	if s.cuts++; s.limit <= FirstLimit {
		s.cuts = halfCut
	}
	p.refuse(now)
	if s.compares() {
		p.set(s.limit/2, holding, now)
		s.from = now.Add(max(refills, took))
	}
	return Refused
}

// compared follows what half of the calls show, once that is known. Refusals that are none of the load are the noise from now
// on, and the limit is what it was.
func (p *Pacer) compared(now time.Time) (d Decision, known bool) {
	s := p.spree
	unrelated, known := s.unrelated(now)
	if known {
		p.spree = spree{}
	}
	if !known || !unrelated {
		return Unchanged, known
	}
	s.high.merge(s.low, 1)
	p.noise = noise{s.high.refused() + math.Sqrt(s.high.variance()), now.Add(max(keepNoise, noiseCalls*s.took))}
	p.ceiling, p.cut = ceiling{keep: keepCeiling / 2}, false
	if s.found {
		p.hold(s.back, now)
	} else {
		p.search(s.back, now)
	}
	return Unrelated, true
}

// refuse lowers the limit: the destination refuses calls.
func (p *Pacer) refuse(now time.Time) Decision {
	part := float64(p.window.faults) / float64(p.window.calls)
	to := min(p.limit-1, int(max(cutTo, 1-2*part)*float64(p.limit)))
	if p.phase == rising && p.experiment.from > 0 {
		to = max(to, p.experiment.from)
	}
	if p.ceiling.calls == 0 { // it refuses again
		p.ceiling.keep = min(mostKeep, 2*p.ceiling.keep)
	}
	if p.ceiling.calls == 0 || p.ceiling.until.Sub(now) < p.ceiling.keep-refills {
		p.ceiling.calls, p.ceiling.until = p.limit, now.Add(p.ceiling.keep)
	}
	p.found, p.cut = true, true
	p.hold(to, now)
	p.experiment.pause = 1
	return Refused
}
