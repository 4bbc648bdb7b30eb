package pacer

import (
	"math"
	"time"
)

// What a pacer tries, and what it makes of the result.

// AtDestination reports whether more calls would not deliver more, although there may be more.
func (p *Pacer) AtDestination() bool {
	if p.phase == lowering {
		return p.found && p.experiment.from < p.bound
	}
	return p.found && p.limit < p.bound
}

// fallen reports whether calls yield less than before, by more than noise and the experiment under way explain.
func (p *Pacer) fallen(w yields, by float64) bool {
	less := p.base.mean() - w.mean()
	if less <= by {
		return false
	}
	if p.phase == rising {
		less -= math.Log(float64(p.limit) / float64(p.experiment.from))
	}
	return less > max(by, 4*w.apart(p.base))
}

// fall begins the search for a limit that is much lower.
func (p *Pacer) fall(now time.Time) Decision {
	p.experiment.from = p.limit
	p.set(int(cutTo*float64(p.limit)), falling, now)
	return Slower
}

// overshared reports whether calls yield less than they did lately, since the other pacers have too many. What one gains another may
// lose, so that a gain alone says little.
func (p *Pacer) overshared() bool {
	y := p.base.mean()
	if noise := p.base.apart(p.base); y-noise > p.bestYield {
		p.bestYield = y - noise
	} else {
		p.bestYield -= 0.02 * (p.bestYield - y)
	}
	return p.sharers > 1 && p.bestYield-y > tooMuch
}

// below reports whether there is much room below the ceiling.
func (p *Pacer) below() bool {
	return p.ceiling.calls-p.limit > 1 && float64(p.ceiling.calls) > 1.04*float64(p.limit)
}

// rise begins an experiment of more calls, or holds where there is no room.
func (p *Pacer) rise(now time.Time) Decision {
	to := max(p.limit+1, int(math.Round(float64(p.limit)*(1+p.experiment.step))))
	if p.ceiling.calls > 0 {
		if !p.below() {
			p.hold(p.limit, now)
			return Unchanged
		}
		to = min(to, (p.limit+p.ceiling.calls)/2)
	}
	if to = min(to, p.bound); to == p.limit {
		p.hold(p.limit, now)
		return Unchanged
	}
	p.experiment.from = p.limit
	p.set(to, rising, now)
	return Probed
}

// judge compares the experiment with the base.
func (p *Pacer) judge(now time.Time) Decision {
	ratio := math.Log(float64(p.limit) / float64(p.experiment.from))
	gain := 1 + (p.experiment.tried.mean()-p.base.mean())/ratio
	enough := 1 - 1/(2*float64(p.sharers))
	if p.experiment.step > mostStep { // the other pacers rise too
		enough = 0.5
	}
	noise := p.experiment.tried.apart(p.base) / math.Abs(ratio)
	unsure := math.Abs(gain-enough) < sure*noise
	capped, tries := p.phase == rising && p.ceiling.calls > 0, mostTries
	if capped {
		tries = fewTries
	}
	if unsure && p.experiment.tries < tries {
		return Unchanged
	}
	if p.phase == lowering {
		if unsure || gain >= enough {
			return p.back(Lost, now)
		}
		p.base, p.experiment.from = p.experiment.tried, p.limit
		p.hold(p.limit, now)
		p.experiment.lowers = true
		p.experiment.pause = 1
		return Spared
	}
	if gain >= enough || unsure && capped {
		p.base, p.experiment.step, p.found, p.experiment.halved = p.experiment.tried, min(1, 2*p.experiment.step), false, false
		if p.rise(now) == Unchanged {
			p.found = p.limit < p.bound
		}
		return Gained
	}
	p.found, p.cut, p.experiment.halved = true, false, !p.experiment.halved
	if to := int(math.Round(float64(p.experiment.from) * math.Exp(min(1, max(0, gain))*ratio))); p.experiment.step > mostStep && to > p.experiment.from {
		p.hold(to, now)
		return NoGain
	}
	return p.back(NoGain, now)
}

// fell looks for the limit after the yield fell. Where fewer calls do not deliver more each, the events or the
// destination are slower, and the calls do not hinder each other.
func (p *Pacer) fell(w yields, now time.Time) Decision {
	part := math.Exp(w.mean() - p.base.mean())
	if part >= 0.8 || p.limit == 1 {
		p.found = true
		p.hold(p.limit, now)
		return Unchanged
	}
	if p.experiment.tried.n == 0 {
		limit := p.limit
		p.set(int(cutTo*float64(p.limit)), falling, now)
		p.experiment.tried, p.experiment.tries = w, limit
		return Slower
	}
	gain := 1 + (w.mean()-p.experiment.tried.mean())/math.Log(float64(p.limit)/float64(p.experiment.tries))
	from := p.experiment.from
	p.base = w
	if gain >= 0.75 {
		p.hold(from, now)
		return Lost
	}
	p.found = true
	p.hold(int(math.Round(part*float64(p.limit))), now)
	return Slower
}

// Resume begins again after an outage, with two calls at least: one from before may hang.
func (p *Pacer) Resume(now time.Time) Decision {
	p.ceiling.calls = 0
	p.search(max(2, p.good/2), now)
	return Recovered
}

// search begins at a limit as a new pacer does: the others search too.
func (p *Pacer) search(limit int, now time.Time) {
	p.experiment.step, p.found, p.base = 1, false, yields{}
	p.window.width, p.experiment.from, p.spree = shortWindow, 0, spree{}
	p.set(limit, rising, now)
}

// window is the time of which a pacer counts the calls. A call counts where it began and ended in one window, or took longer
// than a window: the same part of the short and of the long ones in each, whatever the limit.
type window struct {
	yields  yields
	width   time.Duration
	at      time.Time // when it began, or will
	changed time.Time // when the limit changed last: faults of calls that began before are of another limit
	// When the limit's last change has shown: calls that began before yield what another limit made of them.
	settled     time.Time
	calls       int
	faults      int
	lastCalls   int    // calls of the last window
	lately      sample // calls of the last windows at the limit
	running     int
	noted       time.Time // until when callSeconds counts
	callSeconds float64
}

// open begins a window.
func (w *window) open(at time.Time) {
	w.yields, w.at, w.calls, w.faults, w.callSeconds = yields{}, at, 0, 0, 0
}

func (w *window) callBegan(now time.Time) {
	w.pass(now)
	w.running++
}

func (w *window) callEnded(now time.Time) {
	w.pass(now)
	w.running--
}

// pass counts the seconds of the calls that run, from the begin of the window on.
func (w *window) pass(now time.Time) {
	from := w.noted
	if w.at.After(from) {
		from = w.at
	}
	if now.After(from) {
		w.callSeconds += float64(w.running) * now.Sub(from).Seconds()
	}
	w.noted = now
}

// used reports whether the calls made use of the limit.
func (w *window) used(limit int, now time.Time) bool {
	return w.callSeconds >= limitedPart*float64(limit)*now.Sub(w.at).Seconds()
}

// yields are of some calls.
type yields struct{ n, sum, squares, took float64 }

func (y *yields) add(events int, took time.Duration) {
	d := max(took, time.Microsecond).Seconds()
	x := math.Log(float64(events) / d)
	y.n++
	y.sum += x
	y.squares += x * x
	y.took += math.Log(d)
}

func (y *yields) merge(o yields, fade float64) {
	*y = yields{y.n*fade + o.n, y.sum*fade + o.sum, y.squares*fade + o.squares, y.took*fade + o.took}
}

func (y yields) mean() float64 { return y.sum / max(y.n, 1) }

func (y yields) variance() float64 {
	return max(0.01, y.squares/max(y.n, 1)-y.mean()*y.mean())
}

// typical is how long a call takes.
func (y yields) typical() time.Duration {
	if y.n == 0 {
		return 0
	}
	return time.Duration(math.Exp(y.took/y.n) * float64(time.Second))
}

// apart is the standard error of the difference of two means.
func (y yields) apart(o yields) float64 {
	return math.Sqrt(y.variance()/max(y.n, 1) + o.variance()/max(o.n, 1))
}
