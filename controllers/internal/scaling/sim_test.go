package scaling

import (
	"math"
	"math/rand/v2"
	"time"
)

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
	// noise is that of an estimated count, above 10,000.
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
