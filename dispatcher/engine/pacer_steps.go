package engine

import (
	"math"
	"time"
)

// What a pacer tries, and what it makes of the result.

// atDestination reports whether more calls would not deliver more, although there may be more.
func (p *pacer) atDestination() bool {
	if p.phase == lowering {
		return p.found && p.from < p.most
	}
	return p.found && p.limit < p.most
}

// fallen reports whether calls yield less than before, by more than noise and the experiment under way explain.
func (p *pacer) fallen(w yields, by float64) bool {
	less := p.base.mean() - w.mean()
	if less <= by {
		return false
	}
	if p.phase == rising {
		less -= math.Log(float64(p.limit) / float64(p.from))
	}
	return less > max(by, 4*w.apart(p.base))
}

// fall begins the search for a limit that is much lower.
func (p *pacer) fall(now time.Time) decision {
	p.from = p.limit
	p.set(int(cutTo*float64(p.limit)), falling, now)
	return slower
}

// crowded reports whether calls yield less than they did lately, since peers have too many. What one gains another may
// lose, so that a gain alone says little.
func (p *pacer) crowded() bool {
	y := p.base.mean()
	if noise := p.base.apart(p.base); y-noise > p.peak {
		p.peak = y - noise
	} else {
		p.peak -= 0.02 * (p.peak - y)
	}
	return p.peers > 1 && p.peak-y > tooMuch
}

// below reports whether there is much room below the ceiling.
func (p *pacer) below() bool {
	return p.ceiling-p.limit > 1 && float64(p.ceiling) > 1.04*float64(p.limit)
}

// rise begins an experiment of more calls, or holds where there is no room.
func (p *pacer) rise(now time.Time) decision {
	to := max(p.limit+1, int(math.Round(float64(p.limit)*(1+p.step))))
	if p.ceiling > 0 {
		if !p.below() {
			p.hold(p.limit, now)
			return unchanged
		}
		to = min(to, (p.limit+p.ceiling)/2)
	}
	if to = min(to, p.most); to == p.limit {
		p.hold(p.limit, now)
		return unchanged
	}
	p.from = p.limit
	p.set(to, rising, now)
	return probed
}

// judge compares the experiment with the base.
func (p *pacer) judge(now time.Time) decision {
	ratio := math.Log(float64(p.limit) / float64(p.from))
	gain := 1 + (p.tried.mean()-p.base.mean())/ratio
	enough := 1 - 1/(2*float64(p.peers))
	if p.step > mostStep { // the peers rise too
		enough = 0.5
	}
	noise := p.tried.apart(p.base) / math.Abs(ratio)
	unsure := math.Abs(gain-enough) < sure*noise
	capped, tries := p.phase == rising && p.ceiling > 0, mostTries
	if capped {
		tries = fewTries
	}
	if unsure && p.tries < tries {
		return unchanged
	}
	if p.phase == lowering {
		if unsure || gain >= enough {
			return p.back(lost, now)
		}
		p.base, p.from = p.tried, p.limit
		p.hold(p.limit, now)
		p.lower = true
		p.holds = 1
		return spared
	}
	if gain >= enough || unsure && capped {
		p.base, p.step, p.found, p.shy = p.tried, min(1, 2*p.step), false, false
		if p.rise(now) == unchanged {
			p.found = p.limit < p.most
		}
		return gained
	}
	p.found, p.shy = true, !p.shy
	if to := int(math.Round(float64(p.from) * math.Exp(min(1, max(0, gain))*ratio))); p.step > mostStep && to > p.from {
		p.hold(to, now)
		return noGain
	}
	return p.back(noGain, now)
}

// fell looks for the limit after the yield fell. Where fewer calls do not deliver more each, the events or the
// destination are slower, and the calls do not hinder each other.
func (p *pacer) fell(w yields, now time.Time) decision {
	part := math.Exp(w.mean() - p.base.mean())
	if part >= 0.8 || p.limit == 1 {
		p.found = true
		p.hold(p.limit, now)
		return unchanged
	}
	if p.tried.n == 0 {
		limit := p.limit
		p.set(int(cutTo*float64(p.limit)), falling, now)
		p.tried, p.tries = w, limit
		return slower
	}
	gain := 1 + (w.mean()-p.tried.mean())/math.Log(float64(p.limit)/float64(p.tries))
	from := p.from
	p.base = w
	if gain >= 0.75 {
		p.hold(from, now)
		return lost
	}
	p.found = true
	p.hold(int(math.Round(part*float64(p.limit))), now)
	return slower
}

// refuse lowers the limit: the destination refuses calls.
func (p *pacer) refuse(now time.Time) decision {
	part := float64(p.faults) / float64(p.calls)
	to := min(p.limit-1, int(max(cutTo, 1-2*part)*float64(p.limit)))
	if p.phase == rising && p.from > 0 {
		to = max(to, p.from)
	}
	if p.ceiling == 0 { // it refuses again
		p.keep = min(mostKeep, 2*p.keep)
	}
	if p.ceiling == 0 || p.until.Sub(now) < p.keep-refills {
		p.ceiling, p.until = p.limit, now.Add(p.keep)
	}
	p.found = true
	p.hold(to, now)
	p.holds = 1
	return refused
}

// resume begins again after an outage.
func (p *pacer) resume(now time.Time) decision {
	p.ceiling, p.step, p.found, p.base = 0, 1, false, yields{}
	p.width, p.from = shortWindow, 0
	p.set(p.good/2, rising, now)
	return recovered
}
