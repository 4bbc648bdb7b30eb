// Package scaling decides how many pods a dispatcher needs, from what its pods report. It reads no clock and writes
// nothing: the same samples give the same numbers.
//
// The number is ceil((arrival + backlog / catchUp) / (what a pod delivers * 0.7)). It rises at once when the pods cannot
// deliver the backlog within catchUp, and falls slowly.
package scaling

import (
	"math"
	"slices"
	"time"
)

const (
	// used is the part of what pods can deliver that is planned with.
	used = 0.7
	// settle is how long pods have been ready when what they deliver is theirs.
	settle = window + 10*time.Second
	// calm is for how long fewer pods must have been enough before one goes; pause is the time between
	// two steps down.
	calm  = 5 * time.Minute
	pause = time.Minute
	// gain is what a step up must gain at least, change what ends its veto, and forgotten when it ends by itself.
	gain      = 1.1
	change    = 1.25
	forgotten = time.Hour
)

// Policy is the spec's.
type Policy struct {
	Min, Max int32
	CatchUp  time.Duration
}

func (p Policy) clamp(n float64) int32 {
	return int32(max(float64(p.Min), min(n, float64(p.Max))))
}

// Limit is what limits a pod, as it reports. Empty when it is not known.
type Limit string

// The limits that more pods end, or that are none.
const (
	Concurrency Limit = "Concurrency"
	Idle        Limit = "Idle"
)

// Reason is why the number is not another one.
type Reason string

// The reasons, in addition to those that begin with LimitedBy.
const (
	// Sufficient: this number of pods delivers the backlog in time.
	Sufficient Reason = "Sufficient"
	// Waiting: more are needed, when the pods of the last step are ready and what they deliver is known.
	Waiting Reason = "Waiting"
	// NotObserved: no count is known, or the last one is old, or it is not known yet what a pod delivers.
	NotObserved Reason = "NotObserved"
	// Held: the dispatcher is paused, has no pods, or replaces them.
	Held Reason = "Held"
	// AtMaximum: more are needed than the spec allows.
	AtMaximum Reason = "AtMaximum"
	// NoGain: the last step up has gained less than a tenth.
	NoGain Reason = "NoGain"
)

// LimitedBy is the beginning of a Reason that ends with what limits the pods: more of them would deliver no more.
const LimitedBy = "LimitedBy"

// Limiting reports whether more pods are needed, and the reason is why they are not there.
func (r Reason) Limiting() bool {
	return !slices.Contains([]Reason{Sufficient, Waiting, NotObserved, Held}, r)
}

// Step is a change of the number.
type Step struct {
	At       time.Time
	From, To int32
}

// Decision is what follows from the samples so far.
type Decision struct {
	// Replicas are how many pods are needed.
	Replicas int32
	Reason   Reason
	// PerPod is what a pod can deliver in a second. 0 when it is not known.
	PerPod float64
	// Step is the last one, nil for none.
	Step *Step
}

// Scaler decides for one dispatcher. What it has decided before is in Decision: another one continues from that.
type Scaler struct {
	Decision
	History History

	policy   Policy
	replicas int32     // of the last sample
	settled  time.Time // since when all pods are ready; zero while they are not
	before   float64   // what was delivered before a step up that is not judged yet; 0 for none
	blocked  float64   // what was delivered after a step up that gained too little; 0 for none
	since    time.Time // when it was judged so
	limited  time.Time // when the reason was last seen
	down     time.Time // the last step down
	needs    []demand  // of the last minutes, the oldest first
}

type demand struct {
	at time.Time
	n  int32
}

// Observe adds a sample, and decides.
func (s *Scaler) Observe(p Policy, x Sample) Decision {
	if p != s.policy {
		s.policy, s.blocked, s.needs = p, 0, nil
	}
	if s.Replicas == 0 {
		s.Replicas = x.Replicas
	}
	s.Replicas = p.clamp(float64(s.Replicas))
	s.follow(x)
	fresh := s.History.Add(x)
	r, known := s.History.Rates()
	r.Busy = r.Busy && binding(x.Limits) != Idle // rows are due that no pod may claim
	switch {
	case x.Held:
		s.Reason, s.needs = Held, nil
	case s.History.Old(x.At), !known && s.Reason == "":
		s.Reason, s.needs = NotObserved, nil
	case !known: // as another one has left it
	case fresh:
		s.learn(x, r)
		s.decide(x, r)
	}
	return s.Decision
}

// follow notes what has become of the pods since the last sample.
func (s *Scaler) follow(x Sample) {
	if x.Replicas != s.replicas {
		s.before, s.settled = 0, time.Time{}
		// A step that max has cut short could not gain a tenth, and says nothing.
		enough := float64(x.Replicas) >= gain*gain*float64(s.replicas)
		if r, known := s.History.Rates(); known && r.Busy && s.replicas > 0 && enough {
			s.before = r.Delivered
		}
		if x.Replicas < s.replicas {
			s.blocked = 0
		}
		s.replicas = x.Replicas
	}
	switch {
	case !x.Settled || x.Held:
		s.settled = time.Time{}
	case s.settled.IsZero():
		s.settled = x.At
	}
}

// steady reports whether what the pods deliver is that of so many pods.
func (s *Scaler) steady(x Sample) bool { return !s.settled.IsZero() && x.At.Sub(s.settled) >= settle }

// learn keeps what a pod can deliver, which shows while it has no rest and nothing else limits it, and judges the last step
// up.
func (s *Scaler) learn(x Sample, r Rates) {
	if !s.steady(x) || x.Replicas == 0 {
		return
	}
	switch rate := r.Delivered / float64(x.Replicas); {
	case r.Busy && rate > 0 && binding(x.Limits) == "" && s.PerPod > 0:
		s.PerPod = (s.PerPod + rate) / 2
	case r.Busy && rate > 0 && binding(x.Limits) == "", s.PerPod > 0 && rate > s.PerPod:
		s.PerPod = rate
	}
	if s.before > 0 && r.Busy && r.Delivered < gain*s.before {
		s.blocked, s.since = r.Delivered, x.At
	}
	s.before = 0
	if s.blocked > 0 && (r.Delivered > change*s.blocked || x.At.Sub(s.since) >= forgotten) {
		s.blocked = 0
	}
}

func (s *Scaler) decide(x Sample, r Rates) {
	demand := r.Arrival + float64(x.Pending)/s.policy.CatchUp.Seconds()
	enough := float64(s.Replicas)
	switch {
	case s.PerPod > 0:
		enough = math.Ceil(demand / (used * s.PerPod))
	case !r.Busy:
		enough = 1 // what a pod can deliver shows when the pods have no rest
	}
	if r.Busy {
		enough = max(enough, float64(s.Replicas))
	}
	s.need(x.At, s.policy.clamp(enough))
	limit, able := binding(x.Limits), s.PerPod*float64(s.Replicas)
	if limit != "" || s.PerPod == 0 {
		able = r.Delivered
	}
	switch {
	case r.Busy && demand > able:
		s.rise(x, enough, limit)
	default:
		s.fall(x)
	}
}

// rise makes a step up of at most four pods, or as many as there are, unless more pods change nothing.
func (s *Scaler) rise(x Sample, enough float64, limit Limit) {
	next := s.policy.clamp(min(enough, max(2*float64(x.Replicas), float64(x.Replicas)+4)))
	switch {
	case limit != "":
		s.limit(x, LimitedBy+Reason(limit))
	case s.PerPod == 0:
		s.Reason = NotObserved
	case s.blocked > 0:
		s.limit(x, NoGain)
	case s.Replicas >= s.policy.Max:
		s.limit(x, AtMaximum)
	case !s.steady(x) || next <= s.Replicas:
		s.Reason = Waiting
	default:
		s.step(x, next)
		s.Reason = Waiting
	}
}

// fall makes a step down of a tenth of the pods, or of one, when fewer have been enough for some minutes.
func (s *Scaler) fall(x Sample) {
	if !s.Reason.Limiting() || x.At.Sub(s.limited) >= pause { // else it would come and go
		s.Reason = Sufficient
	}
	if x.At.Sub(s.needs[0].at) < calm || x.At.Sub(s.down) < pause {
		return
	}
	enough := slices.MaxFunc(s.needs, func(a, b demand) int { return int(a.n - b.n) }).n
	if next := max(enough, s.Replicas-max(1, s.Replicas/10)); next < s.Replicas {
		s.step(x, next)
		s.down = x.At
	}
}

func (s *Scaler) step(x Sample, to int32) {
	s.Step = &Step{At: x.At, From: s.Replicas, To: to}
	s.Replicas = to
}

func (s *Scaler) limit(x Sample, reason Reason) { s.Reason, s.limited = reason, x.At }

// need remembers how many pods were enough.
func (s *Scaler) need(at time.Time, n int32) {
	s.needs = append(s.needs, demand{at, n})
	for len(s.needs) > 1 && at.Sub(s.needs[1].at) >= calm {
		s.needs = s.needs[1:]
	}
}

// binding is the limit of at least half of the pods that more pods do not end, empty for none.
func binding(limits []Limit) Limit {
	count := map[Limit]int{}
	for _, l := range limits {
		if l != "" && l != Concurrency {
			count[l]++
		}
	}
	var most Limit
	all := 0
	for l, n := range count {
		all += n
		if n > count[most] || n == count[most] && l < most {
			most = l
		}
	}
	if all == 0 || 2*all < len(limits) {
		return ""
	}
	return most
}
