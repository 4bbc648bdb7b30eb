package pacer

import (
	"flag"
	"math"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// seeds is how many runs each simulation has. The figures that the pages state come from -seeds 1000.
var seeds = flag.Int("seeds", 5, "how many runs each simulation of a pacer has")

// deviations of the logarithm of the time that a destination works on a call.
var deviations = []float64{0.2, 0.5}

func constant(n int) func(time.Duration) int { return func(time.Duration) int { return n } }

// have notes a figure of a run, and from what to what it is to be.
type have func(what string, x, low, high float64)

// simulate runs a world with each deviation and seed. It fails the test unless nine of ten runs with a deviation have each of
// their figures within its bounds, and prints what they had.
func simulate(t *testing.T, run func(w *world, have have), deviations ...float64) {
	t.Helper()
	for _, deviation := range deviations {
		figures, bounds := map[string][]float64{}, map[string][2]float64{}
		for seed := range uint64(*seeds) {
			w := newWorld(seed)
			w.service = w.around(100*time.Millisecond, deviation)
			run(w, func(what string, x, low, high float64) {
				figures[what], bounds[what] = append(figures[what], x), [2]float64{low, high}
			})
		}
		for what, all := range figures {
			in, low, high := 0, bounds[what][0], bounds[what][1]
			for _, x := range all {
				if x >= low && x <= high {
					in++
				}
			}
			report := t.Logf
			if in < len(all)*9/10 {
				report = t.Errorf
			}
			report("deviation %v: %s: median %.3f, from %.3f to %.3f; %d of %d runs within %v to %v",
				deviation, what, percentile(all, 0.5), percentile(all, 0), percentile(all, 1), in, len(all), low, high)
		}
	}
}

// A destination that works on 40 calls at once: the limit comes to 32 to 48 within 15 s and stays there, nine tenths of
// the best fixed number's rate are delivered, and the slow tail is at most half longer.
//
// CONTRACT: C-38
func TestLongPacerStaysAtAKnee(t *testing.T) {
	skipLong(t)
	for _, deviation := range deviations {
		rate, p90 := best(1, func(w *world) { w.knee = constant(40); w.service = w.around(100*time.Millisecond, deviation) }, 32, 36, 40, 44, 48)
		simulate(t, func(w *world, have have) {
			w.knee = constant(40)
			w.pod(256)
			w.run(120 * time.Second)
			s := w.between(15, 120, 32, 48)
			have("in the band after s", float64(w.reached(0, 120, 32, 48)), 0, 15)
			have("the mean limit", s.mean, 32, 48)
			have("the part of the time in the band", s.inBand, 0.95, 1)
			have("the rate, of the best fixed number's", s.rate/rate, 0.9, 2)
			have("p90, of the best fixed number's", float64(s.p90)/float64(p90), 0, 1.5)
			have("the limit's coefficient of variation", s.varies, 0, 0.25)
		}, deviation)
	}
}

// It works on 40 calls, then on 10, then on 80.
//
// CONTRACT: C-38
func TestLongPacerFollowsTheKnee(t *testing.T) {
	skipLong(t)
	simulate(t, func(w *world, have have) {
		falls, rises := 60*time.Second+time.Duration(w.rnd.IntN(10))*100*time.Millisecond, 120*time.Second
		w.knee = func(t time.Duration) int {
			switch {
			case t < falls:
				return 40
			case t < rises:
				return 10
			}
			return 80
		}
		p := w.pod(256)
		w.run(falls)
		for before := p.pacer.limit; p.pacer.limit >= before && w.now < rises; {
			w.run(w.now + 50*time.Millisecond)
		}
		have("the first cut after s", (w.now - falls).Seconds(), 0, 2)
		w.run(240 * time.Second)
		have("in the band of 10 after s", float64(w.reached(61, 120, 8, 12)-60), 0, 20)
		have("in the band of 80 after s", float64(w.reached(120, 240, 64, 96)-120), 0, 60)
	}, deviations...)
}

// It takes 500 calls a second, and refuses others with 429.
//
// CONTRACT: C-38
func TestLongPacerStaysBelowRefusals(t *testing.T) {
	skipLong(t)
	for burst, least := range map[float64]float64{50: 460, 500: 480} { // a bucket of a tenth of a second refuses below its rate too
		simulate(t, func(w *world, have have) {
			w.rate, w.burst = 500, burst
			w.pod(256)
			w.run(150 * time.Second)
			s := w.between(30, 150, 0, 0)
			have("the rate", s.rate, least, 505) // with what the burst of its bucket allows
			have("the refused part", s.refused, 0, 0.02)
		}, deviations...)
	}
}

// It takes 500 calls a second, then 250, then 500 again.
//
// CONTRACT: C-38
func TestLongPacerFollowsTheRate(t *testing.T) {
	skipLong(t)
	simulate(t, func(w *world, have have) {
		w.rate, w.burst = 500, 50
		w.pod(256)
		w.run(60 * time.Second)
		w.rate = 250
		w.run(150 * time.Second)
		w.rate = 500
		w.run(300 * time.Second)
		s := w.between(80, 150, 0, 0)
		have("the rate of 250", s.rate, 225, 253)
		have("the refused part of it", s.refused, 0, 0.02)
		have("the rate of 500 again", w.between(240, 300, 0, 0).rate, 450, 505)
	}, deviations...)
}

// It works on any number of calls: the bound of 200 is reached within 12 s.
//
// CONTRACT: C-38
func TestLongPacerTakesAllWithoutAKnee(t *testing.T) {
	skipLong(t)
	simulate(t, func(w *world, have have) {
		w.pod(200)
		w.run(60 * time.Second)
		have("at the bound after s", float64(w.reached(0, 60, 180, 200)), 0, 12)
	}, deviations...)
}

// humps is the time of one call of two kinds, and heavy one of a heavy tail.
func (w *world) humps() time.Duration {
	if w.rnd.Float64() < 0.2 {
		return w.around(500*time.Millisecond, 0.2)()
	}
	return w.around(20*time.Millisecond, 0.2)()
}

func (w *world) heavy() time.Duration {
	return min(30*time.Second, time.Duration(float64(40*time.Millisecond)*math.Pow(1-w.rnd.Float64(), -1/1.5)))
}

// Calls of two kinds, and calls with a heavy tail: 0.85 of the best fixed number's rate, and no drift in ten minutes.
//
// CONTRACT: C-38
func TestLongPacerFindsTheKneeOfLongTails(t *testing.T) {
	skipLong(t)
	for name, service := range map[string]func(*world) func() time.Duration{
		"two humps":  func(w *world) func() time.Duration { return w.humps },
		"heavy tail": func(w *world) func() time.Duration { return w.heavy },
	} {
		set := func(w *world) { w.knee = constant(40); w.service = service(w) }
		rate, _ := best(1, set, 36, 40, 44)
		simulate(t, func(w *world, have have) {
			set(w)
			w.pod(256)
			w.run(600 * time.Second)
			have(name+": the rate, of the best fixed number's", w.between(30, 600, 0, 0).rate/rate, 0.83, 2)
			have(name+": the mean limit after ten minutes, of that at first", w.between(480, 600, 0, 0).mean/w.between(30, 150, 0, 0).mean, 0.8, 1.25)
		}, 0)
	}
}

// Three pods share a destination that works on 60 calls, and each finds its own number. One is killed, and another one comes.
//
// CONTRACT: C-38
func TestLongPacersOfThreePodsShareAKnee(t *testing.T) {
	skipLong(t)
	simulate(t, func(w *world, have have) {
		w.knee, w.most = constant(60), 256
		for range 3 {
			w.pod(256)
		}
		w.together()
		w.run(180 * time.Second)
		have("the sum of the limits is in the band of 48 to 72 after s", float64(w.reached(0, 180, 48, 72)), 0, 60)
		s := w.between(60, 180, 48, 72)
		have("the sum", s.mean, 44, 90)
		have("fairness (Jain)", s.fair, 0.6, 1.001)
		w.pods[0].dead = true
		w.run(300 * time.Second)
		have("in the band after one was killed, after s", float64(w.reached(180, 300, 48, 72)-180), 0, 60)
		w.pod(256).beats = w.now
		w.run(420 * time.Second)
		have("in the band after another one came, after s", float64(w.reached(300, 420, 48, 72)-300), 0, 60)
	}, deviations...)
}

// Three topics of one process share a destination that works on 60 calls: none of them knows the others' limits.
//
// CONTRACT: C-38
func TestLongPacersOfThreeTopicsShareAKnee(t *testing.T) {
	skipLong(t)
	simulate(t, func(w *world, have have) {
		w.knee = constant(60)
		for range 3 {
			w.pod(256).pacer.sharers = 3
		}
		w.run(180 * time.Second)
		s := w.between(60, 180, 48, 72)
		have("the sum of the limits", s.mean, 44, 80)
		have("fairness (Jain)", s.fair, 0.6, 1.001)
	}, 0.2)
}

// A refusal of an experiment with more calls goes back to what was good, and no further.
//
// CONTRACT: C-38
func TestPacerGoesBackWhenRefused(t *testing.T) {
	p := New(100, 1)
	p.limit, p.experiment.from, p.phase = 22, 20, rising
	for range 10 {
		p.Ended(epoch, 10*time.Millisecond, 0, true, epoch.Add(10*time.Millisecond))
	}
	need.That(t, p.limit == 20, "the limit is %d, want 20", p.limit)
}

// An hour with less load than the limit allows raises nothing.
//
// CONTRACT: C-38
func TestPacerKeepsItsLimitWithLittleLoad(t *testing.T) {
	w := newWorld(1)
	p := w.pod(256)
	p.want = constant(FirstLimit * 3 / 4)
	w.run(time.Hour)
	need.That(t, p.pacer.limit == FirstLimit, "the limit is %d, want %d: %v", p.pacer.limit, FirstLimit, p.reasons)
}

// Five seconds after an outage half of the rate is delivered.
//
// CONTRACT: C-38
func TestPacerRecoversAfterAnOutage(t *testing.T) {
	simulate(t, func(w *world, have have) {
		w.knee = constant(40)
		w.down = func(t time.Duration) bool { return t > 60*time.Second && t < 70*time.Second }
		w.pod(256)
		w.run(70 * time.Second)
		w.pods[0].pacer.Resume(epoch.Add(w.now))
		w.run(80 * time.Second)
		have("the rate 5 s after, of that before", w.between(74, 76, 0, 0).rate/w.between(50, 60, 0, 0).rate, 0.5, 1.5)
	}, 0.2)
}

// Events that are refused for their own fault say nothing of the destination.
//
// CONTRACT: C-38
func TestPacerIgnoresBadEvents(t *testing.T) {
	simulate(t, func(w *world, have have) {
		w.knee, w.bad = constant(40), 0.3
		w.pod(256)
		w.run(120 * time.Second)
		have("the mean limit with 422 for a third of the events", w.between(15, 120, 32, 48).mean, 32, 48)
	}, 0.2)
}

// Refusals that do not depend on how many calls there are lower nothing for long: nine tenths of the best fixed number's rate
// are delivered.
//
// CONTRACT: C-38
func TestLongPacerIgnoresRefusalsThatAreNotOfTheLoad(t *testing.T) {
	skipLong(t)
	for name, of := range map[string]struct {
		part  float64
		takes time.Duration
		knee  int
		well  time.Duration // so long none of them is at first
		least float64       // of the best fixed number's rate
	}{
		"a hundredth of the events has a 500 of its own":         {0.01, 0, 40, 0, 0.9},
		"one of twenty events has a 500 of its own":              {0.05, 0, 40, 0, 0.9},
		"a fifth of the events has a 500 of its own":             {0.2, 0, 40, 0, 0.9},
		"one of twenty, without a knee":                          {0.05, 0, 0, 0, 0.9},
		"a tenant with a tenth of the events always gets 429":    {0.1, 5 * time.Millisecond, 40, 0, 0.9},
		"a tenant with a tenth of the events hangs after a time": {0.1, 10 * time.Second, 0, 15 * time.Second, 0.8},
		"a tenant with a tenth of the events hangs at once":      {0.1, 10 * time.Second, 0, 0, 0.6},
	} {
		for _, deviation := range deviations {
			set := func(w *world) {
				w.odd, w.oddFor, w.service = of.part, of.takes, w.around(100*time.Millisecond, deviation)
				if of.knee > 0 {
					w.knee = constant(of.knee)
				}
			}
			rate, _ := best(1, set, 16, 32, 40, 48, 128, 256)
			simulate(t, func(w *world, have have) {
				set(w)
				w.odd = 0
				w.pod(256)
				w.run(of.well)
				w.odd = of.part
				w.run(180 * time.Second)
				s := w.between(30, 180, 0, 0)
				have(name+": the rate, of the best fixed number's", s.rate/rate, of.least, 2)
			}, deviation)
		}
	}
}

// One of three pods has a way of its own to the destination, which lets 20 calls a second through: the others are not slower.
//
// CONTRACT: C-38
func TestLongPacersPodThatIsSlowByItselfSlowsItselfAlone(t *testing.T) {
	skipLong(t)
	for slow := range 3 {
		simulate(t, func(w *world, have have) {
			w.most = 255
			for i := range 3 {
				if p := w.pod(85); i == slow {
					p.gap = 50 * time.Millisecond
				}
			}
			w.together()
			w.run(120 * time.Second)
			have("the rate, of that of three without a fault", w.between(60, 120, 0, 0).rate/2450, 0.6, 1.1)
		}, 0.2)
	}
}

// skipLong leaves out with -short what the race detector takes a minute over and finds nothing in: simulations without
// goroutines. hack/test.sh runs them without it.
func skipLong(t *testing.T) {
	if testing.Short() {
		t.Skip("it is long: run it without -short")
	}
	t.Parallel()
}
