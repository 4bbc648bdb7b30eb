package scaling

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// play feeds a scaler with a sample each ten seconds.
type play struct {
	scaler Scaler
	policy Policy
	at     time.Duration
	x      Sample
	last   Decision
}

func newPlay(n int32) *play {
	return &play{policy: Policy{Min: 1, Max: 10, CatchUp: 5 * time.Minute},
		x: Sample{Replicas: n, Settled: true, Limits: []Limit{Concurrency}}}
}

// for10s plays so many samples of pods that deliver so much, with so many rows due and each time more.
func (p *play) for10s(times int, delivered float64, pending, more int64) Decision {
	for range times {
		p.at += 10 * time.Second
		p.x.At, p.x.Counted = began.Add(p.at), began.Add(p.at)
		p.x.Delivered, p.x.Pending, p.x.Live = delivered, pending, pending
		p.last = p.scaler.Observe(p.policy, p.x)
		pending += more
	}
	return p.last
}

func (p *play) want(t *testing.T, what string, n int32, reason Reason) {
	t.Helper()
	need.That(t, p.last.Replicas == n && p.last.Reason == reason, "%s: %d pods, %s; want %d, %s", what, p.last.Replicas, p.last.Reason, n, reason)
}

// CONTRACT: C-107
func TestDecisionsFollowTheSamples(t *testing.T) {
	p := newPlay(1)
	p.for10s(1, 100, 2000, 1000)
	p.want(t, "one count", 1, NotObserved)
	p.for10s(3, 100, 3000, 1000)
	p.want(t, "what a pod delivers is known", 4, Waiting) // (200 + 6000/300) / 70
	need.That(t, p.last.PerPod == 100 && *p.last.Step == (Step{At: began.Add(40 * time.Second), From: 1, To: 4}), "a pod delivers %v, the step is %+v", p.last.PerPod, p.last.Step)
	p.x.Replicas, p.x.Settled = 4, false
	p.for10s(30, 100, 6000, 4000)
	p.want(t, "its pods are not ready", 4, Waiting)
	p.x.Settled = true
	p.for10s(3, 400, 60000, 0)
	p.want(t, "for less than 25 seconds", 4, Waiting)
	p.for10s(1, 400, 60000, 0)
	p.want(t, "and again, as many as there are", 8, Waiting)
	p.x.Replicas = 8
	p.for10s(4, 800, 300000, 0)
	p.want(t, "and the most", 10, Waiting)
	p.x.Replicas = 10
	p.for10s(4, 1000, 300000, 0)
	p.want(t, "no more than the most", 10, AtMaximum)
	p.policy.Max = 11
	p.for10s(1, 1000, 300000, 0)
	p.want(t, "one more", 11, Waiting)
	p.x.Replicas = 11
	p.for10s(4, 1050, 300000, 0)
	p.want(t, "a step that could not gain a tenth", 11, AtMaximum)
	p.policy.Max = 6
	p.for10s(1, 1000, 300000, 0)
	p.want(t, "a lower one", 6, AtMaximum)
}

func TestStepsDownAreSmallAndLate(t *testing.T) {
	p := newPlay(30)
	p.policy.Max = 40
	p.scaler.Decision = Decision{Replicas: 30, Reason: Sufficient, PerPod: 100} // of the status
	p.for10s(1, 500, 0, 0)
	p.want(t, "a new operator", 30, Sufficient)
	p.for10s(29, 500, 0, 0)
	p.want(t, "for less than five minutes", 30, Sufficient)
	p.for10s(2, 500, 0, 0)
	p.want(t, "a tenth", 27, Sufficient)
	p.for10s(5, 500, 0, 0)
	p.want(t, "not two in a minute", 27, Sufficient)
	p.for10s(1, 500, 0, 0)
	p.want(t, "a minute later", 25, Sufficient)
	p.for10s(1, 2000, 0, 0)
	p.for10s(28, 500, 0, 0)
	p.want(t, "what was needed in the last five minutes counts", 29-4, Sufficient)
	p.for10s(600, 500, 0, 0)
	p.want(t, "and in the end", 8, Sufficient) // 500 / 70
	p.for10s(600, 0, 0, 0)
	p.want(t, "nothing to do", 1, Sufficient)
}

// CONTRACT: C-107
func TestNumberIsKeptWhereMorePodsDoNotHelp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*play)
		reason Reason
	}{
		"paused":                        {func(p *play) { p.x.Held = true }, Held},
		"limited by a rate":             {func(p *play) { p.x.Limits = []Limit{"Rate", "Rate", Concurrency} }, "LimitedByRate"},
		"half of them by the database":  {func(p *play) { p.x.Limits = []Limit{"Database", Concurrency} }, "LimitedByDatabase"},
		"by several":                    {func(p *play) { p.x.Limits = []Limit{"Order", "Consumer", Concurrency, "Order"} }, "LimitedByOrder"},
		"rows are due that none claims": {func(p *play) { p.x.Limits = []Limit{Idle, Idle} }, Sufficient},
	} {
		p := newPlay(2)
		p.for10s(6, 50, 0, 0)
		c.change(p)
		p.for10s(12, 200, 5000, 1000)
		p.want(t, name, 2, c.reason)
	}
	p := newPlay(2) // a third of them is not enough
	p.x.Limits = []Limit{"Rate", Concurrency, ""}
	p.for10s(6, 200, 5000, 2000)
	p.want(t, "a third by a rate", 6, Sufficient)

	p = newPlay(2) // limited: said for a minute more
	p.x.Limits = []Limit{"Rate"}
	p.for10s(6, 200, 5000, 1000)
	p.for10s(5, 200, 0, 0)
	p.want(t, "within a minute", 2, "LimitedByRate")
	p.for10s(1, 200, 0, 0)
	p.want(t, "after a minute", 2, Sufficient)
}

// CONTRACT: C-107
func TestPodsThatGainNothingAreNotAdded(t *testing.T) {
	p := newPlay(2)
	gained := func(delivered float64) {
		t.Helper()
		p = newPlay(2)
		p.for10s(4, 200, 5000, 2000)
		p.want(t, "a step", 6, Waiting)
		p.x.Replicas = 6
		p.for10s(4, delivered, 13000, 4000)
	}
	gained(225)
	p.want(t, "a gain of an eighth", 10, Waiting)
	gained(215)
	p.want(t, "a gain of a fourteenth", 6, NoGain)
	p.for10s(300, 260, 30000, 2000)
	p.want(t, "a fifth more, much later", 6, NoGain)
	p.for10s(1, 275, 630000, 2000)
	p.want(t, "a quarter more", 10, Waiting)

	gained(210)
	p.for10s(359, 210, 30000, 2000)
	p.want(t, "nearly an hour", 6, NoGain)
	p.for10s(1, 210, 748000, 2000)
	p.want(t, "an hour", 10, Waiting)

	gained(210)
	p.policy.CatchUp += time.Second
	p.for10s(1, 210, 30000, 2000)
	p.want(t, "another spec", 10, Waiting)

	gained(210)
	p.x.Replicas = 5
	p.for10s(4, 210, 30000, 2000)
	p.want(t, "a person has removed one", 10, Waiting)
}

// Nothing follows from what was before a pause.
func TestPauseForgetsWhatWasBefore(t *testing.T) {
	p := newPlay(5)
	p.for10s(29, 0, 0, 0)
	p.x.Held = true
	p.for10s(6, 0, 0, 0)
	p.x.Held = false
	p.for10s(29, 0, 0, 0)
	p.want(t, "five minutes begin again", 5, Sufficient)
	p.for10s(2, 0, 0, 0)
	p.want(t, "five minutes later", 4, Sufficient)

	p = newPlay(4)
	p.scaler.Decision = Decision{Replicas: 4, Reason: Sufficient, PerPod: 100}
	p.for10s(6, 300, 0, 0)
	p.x.Held = true
	p.for10s(6, 0, 5000, 1000)
	p.x.Held = false
	p.for10s(3, 400, 50000, 2000)
	p.want(t, "what pods deliver is known 25 seconds later", 4, Waiting)
	p.for10s(1, 400, 56000, 2000)
	p.want(t, "and is then", 8, Waiting)
}

// CONTRACT: C-107
func TestWhatAPodDelivers(t *testing.T) {
	known := func(n int32) *play {
		p := newPlay(n)
		p.scaler.Decision = Decision{Replicas: n, Reason: Sufficient, PerPod: 100}
		return p
	}
	p := known(4)
	p.x.Limits = []Limit{"Rate"}
	p.for10s(20, 200, 5000, 1000)
	need.Want(t, 100, "limited by a rate, a pod can deliver %v", p.last.PerPod)
	p.x.Limits = nil
	p.for10s(20, 200, 5000, 1000)
	got := p.last.PerPod
	need.That(t, got >= 50 && got <= 51, "without a rest a pod can deliver %v", got)
	p = known(2)
	p.for10s(6, 300, 0, 0)
	need.Want(t, 150, "a pod that delivers more has %v", p.last.PerPod)
	p = known(3)
	p.x.Limits = []Limit{"Destination"}
	p.for10s(6, 150, 5000, 500)
	p.want(t, "limited, although three pods could deliver it", 3, "LimitedByDestination")

	p = known(8) // a backlog that is being delivered keeps its pods
	p.x.Limits = []Limit{"Destination"}
	p.for10s(60, 100, 40000, -600)
	p.want(t, "while it is delivered", 8, Sufficient)
	p.for10s(40, 100, 4000, -90)
	p.want(t, "and until it is", 8, Sufficient)
}

// A step after which nothing is due has gained enough.
func TestStepThatEndsTheBacklog(t *testing.T) {
	p := newPlay(2)
	p.for10s(4, 200, 5000, 2000)
	p.x.Replicas = 6
	p.for10s(6, 200, 0, 0)
	p.for10s(2, 240, 90000, 5000)
	p.want(t, "later", 10, Waiting)
}

func TestHistoryTakesNewCountsAlone(t *testing.T) {
	var h History
	add := func(at, count time.Duration) bool {
		return h.Add(Sample{At: began.Add(at), Counted: began.Add(count), Pending: 100, Live: 100})
	}
	need.That(t, !h.Add(Sample{At: began}) && h.Old(began), "no count is one")
	need.That(t, add(0, 0) && !add(time.Second, 0) && !add(4*time.Second, 4*time.Second) && add(5*time.Second, 5*time.Second), "counts are new when they are five seconds apart")
	need.That(t, !h.Old(began.Add(65*time.Second)) && h.Old(began.Add(66*time.Second)), "a count is old after a minute")
	for i := range time.Duration(100) {
		add(10*i*time.Second, 10*i*time.Second)
	}
	need.Want(t, 3, "%d samples are kept, want those of the last 15 seconds and the one before", len(h.samples))
	if _, known := h.Rates(); !known {
		t.Error("the rates of three samples are not known")
	}
	need.That(t, add(1000*time.Second, 0), "another server's clock is refused")
	if _, known := h.Rates(); known {
		t.Error("the counts of two clocks make a rate")
	}
	add(1010*time.Second, time.Hour)
	if _, known := h.Rates(); known {
		t.Error("counts an hour apart make a rate")
	}
}

func TestRatesAndETA(t *testing.T) {
	for _, c := range []struct {
		from, to   int64 // pending
		processing int64 // at the end
		delivered  float64
		arrival    float64
		eta        string
		rests      bool
	}{
		{from: 0, to: 0, delivered: 5, arrival: 5, rests: true},
		{from: 0, to: 5000, delivered: 100, arrival: 350, rests: true},
		{from: 50000, to: 10000, delivered: 1000, arrival: 0, eta: "1m"}, // a person has discarded some
		{from: 50000, to: 40000, delivered: 1000, arrival: 500, eta: "2m"},
		{from: 50000, to: 45000, delivered: 1000, arrival: 750, eta: "3m"},
		{from: 50000, to: 45000, processing: 5000, delivered: 1000, arrival: 1000, eta: "never"}, // leased alone
		{from: 50000, to: 60000, delivered: 1000, arrival: 1500, eta: "never"},
		{from: 50000, to: 49900, delivered: 1000, arrival: 995, eta: "never"},
		{from: 500, to: 400, delivered: 1000, arrival: 995, rests: true}, // no rest is needed for so few
		{from: 12000, to: 9900, delivered: 1000, arrival: 895, eta: ""},
		{from: 500, to: 500, delivered: 0, arrival: 0, eta: "never"},
		{from: 1000000, to: 990000, delivered: 500, arrival: 0, eta: "35m"},
		{from: 10000000, to: 9990000, delivered: 500, arrival: 0, eta: "6h"},
		{from: 50000000, to: 49990000, delivered: 500, arrival: 0, eta: ">1d"}, // 28 hours
		{from: 100000000, to: 99990000, delivered: 500, arrival: 0, eta: ">1d"},
	} {
		var h History
		h.Add(Sample{At: began, Counted: began, Pending: c.from, Live: c.from, Delivered: c.delivered})
		later := began.Add(20 * time.Second)
		h.Add(Sample{At: later, Counted: later, Pending: c.to, Live: c.to + c.processing, Delivered: c.delivered})
		r, known := h.Rates()
		got := r.ETA()
		need.That(t, known && r.Arrival == c.arrival && got == c.eta && r.Busy != c.rests, "%+v: arrival %v, ETA %q, busy %v", c, r.Arrival, got, r.Busy)
	}
}
