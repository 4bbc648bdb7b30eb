package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// seeds is how many worlds each simulation plays.
const seeds = 500

// A load that grows tenfold: pods follow within 30 seconds, the backlog is gone within 1.5 times catchUp, and the number
// changes its direction twice at most.
//
// CONTRACT: C-107
func TestPodsFollowATenfoldLoad(t *testing.T) {
	var slowest, longest float64
	for seed := range uint64(seeds) {
		w := newWorld(seed, 1)
		base := 20 + 180*w.rng.Float64()
		start := 900 + 60*w.rng.Float64()
		w.arrival = func(at float64) float64 {
			if at < start {
				return base
			}
			return 10 * base
		}
		w.startup = 5 + 15*w.rng.Float64()
		w.silent = seed%2 == 0
		w.run(start)
		w.steps, w.mark = nil, start
		w.run(start + 1800)
		slowest, longest = max(slowest, w.risen-w.exceeded), max(longest, w.drained-w.exceeded)
		if w.risen < 0 || w.risen-w.exceeded > 30 || w.drained < 0 || w.drained-w.exceeded > 1.5*w.policy.CatchUp.Seconds() || w.turns() > 2 {
			t.Errorf("seed %d: %.0f/s, tenfold at %.0f: exceeded %.0f, risen %.0f, drained %.0f, %d turns: %v", seed, base, start, w.exceeded, w.risen, w.drained, w.turns(), brief(w.steps))
		}
	}
	t.Logf("up after %.0f s, drained after %.0f s at most", slowest, longest)
}

func brief(steps []Step) (all []string) {
	for _, s := range steps {
		all = append(all, fmt.Sprintf("%.0f: %d→%d", s.At.Sub(began).Seconds(), s.From, s.To))
	}
	return all
}

// CONTRACT: C-107
func TestBoundByTheDestination(t *testing.T) {
	for seed := range uint64(seeds) {
		w := newWorld(seed, 3)
		w.most = 150
		w.arrival = func(at float64) float64 {
			if at < 600 {
				return 120
			}
			return 600
		}
		w.run(600)
		w.steps = nil
		w.run(600 + 1800)
		if len(w.steps) > 0 || w.scaler.Reason != "LimitedByDestination" {
			t.Errorf("seed %d: %v %s", seed, brief(w.steps), w.scaler.Reason)
		}

		w = newWorld(seed, 3) // pods that do not know it: one step that gains nothing
		w.silent, w.most = true, 150
		w.arrival = func(float64) float64 { return 600 }
		w.run(1800)
		if w.ups() > 1 || w.scaler.Reason != NoGain {
			t.Errorf("seed %d, silent: %v %s", seed, brief(w.steps), w.scaler.Reason)
		}
	}
}

// Counts that are old, or none, change nothing.
//
// CONTRACT: C-107
func TestOldCountsHold(t *testing.T) {
	for seed := range uint64(seeds) {
		w := newWorld(seed, 4)
		load := []float64{0, 100, 5000}[seed%3]
		w.arrival = func(float64) float64 { return 250 }
		w.run(600)
		w.arrival = func(float64) float64 { return load }
		w.blind, w.steps = w.t, nil
		w.run(600 + 3600)
		if len(w.steps) > 0 || w.scaler.Reason != NotObserved {
			t.Errorf("seed %d: %v %s", seed, brief(w.steps), w.scaler.Reason)
		}
	}
}

// Loads of many shapes: a steady one comes to rest, and one that moves makes no number swing.
//
// CONTRACT: C-107
func TestNumberDoesNotSwing(t *testing.T) {
	most := 0
	for seed := range uint64(seeds) {
		w := newWorld(seed, 1+int32(seed%8))
		level, walk := 50+2000*w.rng.Float64(), 0.0
		shape := seed % 4
		w.pod = func(at float64) float64 { return 100 * (1 + 0.1*math.Sin(at/97)) }
		w.silent = seed%3 == 0
		w.arrival = func(at float64) float64 {
			switch shape {
			case 1: // bursts of five seconds each minute
				if math.Mod(at, 60) < 5 {
					return 3 * level
				}
				return level / 2
			case 2: // waves of twenty minutes
				return level * (1 + 0.5*math.Sin(at/1200*2*math.Pi))
			case 3: // a walk
				walk = 0.999*walk + 0.01*w.rng.NormFloat64()
				return level * math.Exp(walk)
			}
			return level
		}
		w.run(1800)
		w.steps = nil
		w.run(1800 + 3600)
		limit := map[uint64]int{0: 1, 1: 2, 2: 6, 3: 8}[shape]
		if most = max(most, w.turns()); w.turns() > limit {
			t.Errorf("seed %d, shape %d: %d turns in an hour: %v", seed, shape, w.turns(), brief(w.steps))
		}
		for i := 1; i < len(w.steps); i++ {
			if a, b := w.steps[i-1], w.steps[i]; a.To > a.From && b.To < b.From && b.At.Sub(a.At) < calm {
				t.Errorf("seed %d: down %s after up: %v", seed, b.At.Sub(a.At), brief(w.steps))
			}
		}
	}
	t.Logf("%d turns in an hour at most", most)
}

// Pods that were never busy go one after the other, until they are or the least is reached.
func TestIdlePodsGo(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(seed, 12)
		w.arrival = func(float64) float64 { return 130 }
		w.run(3600)
		if n := w.scaler.Replicas; n < 2 || n > 3 || w.turns() > 1 {
			t.Errorf("seed %d: %d pods for 1.3 pods' load: %v", seed, n, brief(w.steps))
		}
	}
}

// world is a dispatcher in virtual time, in steps of a second.
type world struct {
	rng    *rand.Rand
	policy Policy
	// arrival is how many rows become due in a second at a time, pod how many a pod delivers, and most how many the
	// destination takes.
	arrival func(t float64) float64
	pod     func(t float64) float64
	most    float64
	// silent pods name no limit; blind ones report no count from that second on.
	silent bool
	blind  float64
	// startup is how many seconds a pod takes to be ready.
	startup float64
	// noise is the error of an estimated count, above 10,000.
	noise float64

	scaler    Scaler
	t         float64
	pods      []float64 // when each is ready
	backlog   float64
	delivered [15]float64 // of the last seconds
	next      float64     // poll
	limit     Limit

	steps    []Step
	exceeded float64 // when the time to drain first exceeded catchUp, after mark
	risen    float64 // the first step up after that
	drained  float64 // when the backlog was gone after that
	mark     float64
}

var began = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

func newWorld(seed uint64, start int32) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), policy: Policy{Min: 1, Max: 50, CatchUp: 5 * time.Minute},
		pod: func(float64) float64 { return 100 }, most: math.Inf(1), blind: math.Inf(1), startup: 12, noise: 0.01,
		exceeded: -1, risen: -1, drained: -1, mark: math.Inf(1),
	}
	w.resize(start)
	for i := range w.pods {
		w.pods[i] = 0
	}
	return w
}

func (w *world) resize(n int32) {
	for int32(len(w.pods)) < n {
		w.pods = append(w.pods, w.t+w.startup)
	}
	w.pods = w.pods[:n]
}

func (w *world) ready() (n float64) {
	for _, at := range w.pods {
		if at <= w.t {
			n++
		}
	}
	return n
}

// run plays until that second.
func (w *world) run(until float64) {
	for ; w.t < until; w.t++ {
		arrival := max(0, w.arrival(w.t))
		arrival = max(0, arrival+math.Sqrt(arrival)*w.rng.NormFloat64())
		able := w.ready() * w.pod(w.t)
		can := min(able, w.most)
		w.backlog += arrival
		done := min(w.backlog, can)
		w.backlog -= done
		w.delivered[int(w.t)%len(w.delivered)] = done
		switch {
		case w.silent:
			w.limit = ""
		case w.backlog == 0:
			w.limit = Idle
		case w.most < able:
			w.limit = "Destination"
		default:
			w.limit = Concurrency
		}
		w.watch(can)
		if w.t >= w.next {
			w.next = w.t + 9 + 2*w.rng.Float64()
			w.poll()
		}
	}
}

// watch notes when the time to drain exceeds catchUp.
func (w *world) watch(can float64) {
	expected := max(0, w.arrival(w.t))
	switch {
	case w.t < w.mark:
	case w.exceeded < 0 && w.backlog > 1 && expected+w.backlog/w.policy.CatchUp.Seconds() > can:
		w.exceeded = w.t
	case w.exceeded >= 0 && w.drained < 0 && w.backlog < 1:
		w.drained = w.t
	}
}

func (w *world) poll() {
	at := began.Add(time.Duration(w.t * float64(time.Second)))
	x := Sample{At: at, Replicas: int32(len(w.pods)), Settled: w.ready() == float64(len(w.pods))}
	for range len(w.pods) {
		x.Limits = append(x.Limits, w.limit)
	}
	if w.t < w.blind {
		count := w.backlog
		if count > 10000 {
			count *= 1 + w.noise*w.rng.NormFloat64()
		}
		x.Counted, x.Pending = at.Add(-time.Hour), int64(count) // the database's clock is another
		x.Live = x.Pending
		for _, n := range w.delivered {
			x.Delivered += n / float64(len(w.delivered))
		}
	}
	before := w.scaler.Replicas
	d := w.scaler.Observe(w.policy, x)
	if before > 0 && d.Replicas != before {
		w.steps = append(w.steps, *d.Step)
		if d.Replicas > before && w.exceeded >= 0 && w.risen < 0 {
			w.risen = w.t
		}
	}
	w.resize(d.Replicas)
}

// turns counts the changes of direction.
func (w *world) turns() (n int) {
	for i := 1; i < len(w.steps); i++ {
		if (w.steps[i].To > w.steps[i].From) != (w.steps[i-1].To > w.steps[i-1].From) {
			n++
		}
	}
	return n
}

func (w *world) ups() (n int) {
	for _, s := range w.steps {
		if s.To > s.From {
			n++
		}
	}
	return n
}
