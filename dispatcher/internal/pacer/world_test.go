package pacer

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a destination and the pods that deliver to it, as a simulation of events in virtual time without goroutines.
// The pods always have a backlog.
type world struct {
	rnd  *rand.Rand
	now  time.Duration
	due  endings
	pods []*pod
	most int // calls of all pods that are together

	knee    func(t time.Duration) int // calls at once that it works on, in order of their arrival; 0 for all
	service func() time.Duration      // how long it works on one
	rate    float64                   // calls a second that it takes; others get 429. 0 for all
	burst   float64
	bad     float64 // the part of the events that have a fault of their own
	down    func(t time.Duration) bool
	odd     float64       // the part of the events that are refused whatever else it has to do
	oddFor  time.Duration // how long it takes over one; 0 for as long as over others

	working int
	queue   []*simCall
	tokens  float64
	filled  time.Duration
}

// pod has one pacer, or a fixed limit.
type pod struct {
	pacer   *Pacer
	fixed   int
	want    func(t time.Duration) int // the most calls that it has events for; nil for any
	running int
	dead    bool
	gap     time.Duration // between two calls that its own way to the destination lets through
	passed  time.Duration // when the last one was
	beats   time.Duration // when its next heartbeat is due; 0 for none
	seen    time.Duration // when the last was
	seconds []second
	reasons map[Decision]int
}

// second is what a pod did in one.
type second struct {
	limit, delivered, refused int
	took                      []time.Duration
}

type simCall struct {
	pod   *pod
	began time.Duration
	ends  time.Duration
	fault bool
	wait  bool // counts in working
}

type endings []*simCall

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].ends < e[j].ends }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(*simCall)) }
func (e *endings) Pop() any {
	last := len(*e) - 1
	c := (*e)[last]
	*e = (*e)[:last]
	return c
}

// epoch is when the simulation begins, of a pacer's clock.
var epoch = time.Unix(1_000_000, 0)

func newWorld(seed uint64) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 7))}
	w.service = w.around(100*time.Millisecond, 0.2)
	return w
}

// around is log-normal with a median and the deviation of its logarithm.
func (w *world) around(median time.Duration, deviation float64) func() time.Duration {
	return func() time.Duration { return time.Duration(float64(median) * math.Exp(deviation*w.rnd.NormFloat64())) }
}

func (w *world) pod(most int) *pod {
	p := &pod{pacer: New(most, 1), reasons: map[Decision]int{}}
	w.pods = append(w.pods, p)
	return p
}

func (p *pod) limit() int {
	if p.pacer == nil {
		return p.fixed
	}
	return p.pacer.limit
}

// together makes the pods divide what they may have, by a heartbeat a second.
func (w *world) together() {
	for _, p := range w.pods {
		p.beats = 1 + time.Duration(w.rnd.Int64N(int64(time.Second)))
	}
}

// beat is a heartbeat of each pod that is due. One is live for three seconds.
func (w *world) beat() {
	for _, p := range w.pods {
		if p.dead || p.beats == 0 || w.now < p.beats {
			continue
		}
		live := 1
		for _, other := range w.pods {
			if other != p && w.now-other.seen <= 3*time.Second && other.seen > 0 {
				live++
			}
		}
		p.pacer.Bound(Part(w.most, live), live, epoch.Add(w.now))
		p.pacer.sharers = live
		p.seen = w.now
		p.beats += time.Second
		w.fill(p)
	}
}

// run lets time pass.
func (w *world) run(until time.Duration) {
	if w.now == 0 {
		w.tokens = w.burst
	}
	for _, p := range w.pods {
		w.fill(p)
	}
	for len(w.due) > 0 && w.due[0].ends <= until {
		c := heap.Pop(&w.due).(*simCall)
		w.now = c.ends
		w.beat()
		if c.wait {
			w.working--
		}
		for len(w.queue) > 0 && w.free() {
			next := w.queue[0]
			w.queue = w.queue[1:]
			w.work(next)
		}
		p := c.pod
		p.running--
		if p.dead {
			continue
		}
		s := p.second(w.now)
		took := c.ends - c.began
		events := 1
		if c.fault {
			s.refused++
			events = 0
		} else if w.bad == 0 || w.rnd.Float64() >= w.bad {
			s.delivered++
			s.took = append(s.took, took)
		}
		if p.pacer != nil {
			p.pacer.Left(epoch.Add(w.now))
			p.reasons[p.pacer.Ended(epoch.Add(c.began), took, events, c.fault, epoch.Add(w.now))]++
		}
		s.limit = p.limit()
		w.fill(p)
	}
	w.now = until
}

func (p *pod) second(t time.Duration) *second {
	at := int(t / time.Second)
	for len(p.seconds) <= at {
		p.seconds = append(p.seconds, second{limit: p.limit()})
	}
	return &p.seconds[at]
}

func (w *world) fill(p *pod) {
	most := p.limit()
	if p.want != nil {
		most = min(most, p.want(w.now))
	}
	for !p.dead && p.running < most {
		p.running++
		c := &simCall{pod: p, began: w.now}
		if p.pacer != nil {
			p.pacer.Began(epoch.Add(w.now))
		}
		switch {
		case w.down != nil && w.down(w.now), w.rate > 0 && !w.token():
			c.fault, c.ends = true, w.now+w.around(5*time.Millisecond, 0.2)()
			heap.Push(&w.due, c)
		case w.odd > 0 && w.rnd.Float64() < w.odd && w.oddFor > 0:
			c.fault, c.ends = true, w.now+w.around(w.oddFor, 0.2)()
			heap.Push(&w.due, c)
		case p.gap > 0:
			p.passed = max(p.passed, w.now) + p.gap
			c.ends = p.passed + w.service()
			heap.Push(&w.due, c)
		case w.free():
			w.work(c)
		default:
			w.queue = append(w.queue, c)
		}
	}
}

func (w *world) free() bool {
	if w.knee == nil {
		return true
	}
	k := w.knee(w.now)
	return k == 0 || w.working < k
}

func (w *world) work(c *simCall) {
	w.working++
	c.wait, c.ends = true, w.now+w.service()
	c.fault = w.oddFor == 0 && w.odd > 0 && w.rnd.Float64() < w.odd
	heap.Push(&w.due, c)
}

func (w *world) token() bool {
	w.tokens = min(max(w.burst, 1), w.tokens+w.rate*(w.now-w.filled).Seconds())
	w.filled = w.now
	if w.tokens < 1 {
		return false
	}
	w.tokens--
	return true
}

// span is what the pods did from one second to another.
type span struct {
	rate, refused float64 // a second, and the part of all calls
	p90           time.Duration
	limits        []float64 // the sum, by second
	low, high     float64   // of these
	mean, varies  float64   // the mean of the sum, and its coefficient of variation
	fair          float64   // Jain's index of the mean limits
	inBand        float64
}

// between measures the seconds from..to; the band is of the sum of the limits.
func (w *world) between(from, to int, low, high float64) (s span) {
	var took []time.Duration
	var delivered, refused, sum, squares float64
	for _, p := range w.pods {
		mean := 0.0
		for at := from; at < to && at < len(p.seconds); at++ {
			mean += float64(p.seconds[at].limit) / float64(to-from)
		}
		if !p.dead {
			sum += mean
			squares += mean * mean
		}
	}
	n := 0
	for _, p := range w.pods {
		if !p.dead {
			n++
		}
	}
	s.fair = sum * sum / (float64(n) * squares)
	for at := from; at < to; at++ {
		limit := 0.0
		for _, p := range w.pods {
			if at < len(p.seconds) && !p.dead {
				limit += float64(p.seconds[at].limit)
			}
			if at < len(p.seconds) {
				delivered += float64(p.seconds[at].delivered)
				refused += float64(p.seconds[at].refused)
				took = append(took, p.seconds[at].took...)
			}
		}
		s.limits = append(s.limits, limit)
		if limit >= low && limit <= high {
			s.inBand += 1 / float64(to-from)
		}
	}
	slices.Sort(took)
	if len(took) > 0 {
		s.p90 = took[len(took)*9/10]
	}
	s.rate, s.refused = delivered/float64(to-from), refused/max(1, delivered+refused)
	s.low, s.high = slices.Min(s.limits), slices.Max(s.limits)
	for _, l := range s.limits {
		s.mean += l / float64(len(s.limits))
	}
	for _, l := range s.limits {
		s.varies += (l - s.mean) * (l - s.mean) / float64(len(s.limits))
	}
	s.varies = math.Sqrt(s.varies) / s.mean
	return s
}

// reached is the first second from which on the sum of the limits is in a band for a while; -1 for never.
func (w *world) reached(from, to int, low, high float64) int {
	for at := from; at+3 <= to; at++ {
		if w.between(at, at+3, low, high).inBand > 0.99 {
			return at
		}
	}
	return -1
}

// best is the rate and the 90th percentile of the best fixed limit, for the same destination.
func best(seed uint64, set func(*world), limits ...int) (rate float64, p90 time.Duration) {
	for _, n := range limits {
		w := newWorld(seed)
		set(w)
		w.pods = append(w.pods, &pod{fixed: n})
		w.run(40 * time.Second)
		s := w.between(10, 40, 0, 0)
		if s.rate > rate*1.01 {
			rate, p90 = s.rate, s.p90
		}
	}
	return rate, p90
}

func percentile(of []float64, part float64) float64 {
	of = slices.SortedFunc(slices.Values(of), cmp.Compare[float64])
	return of[min(len(of)-1, int(part*float64(len(of))))]
}
