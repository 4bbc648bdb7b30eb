package engine

import (
	"math"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// rateBurst is how much of a limit may be unused at a time: a call that begins so late loses nothing. Over all
	// processes a second has no more than the limit and a twelfth of it, and one event of each process (CONTRACT C-36).
	rateBurst = 80 * time.Millisecond
	// rateSupply is how far ahead of a limit rows are claimed. More of them would wait in this process for what another
	// one may deliver.
	rateSupply = longSupply
)

// SetRateShare says which part of Config.RateLimit and of Config.TopicRateLimits this process may use from now on, from
// 0 to 1, until a time of its monotonic clock, and nothing after that; the zero time is never. The parts of all processes
// should have the sum 1. A new Dispatcher may use all of the limits: where several share them, call it with 0 before Run.
// It may be called at any time.
func (d *Dispatcher) SetRateShare(part float64, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ratePart, d.rateUntil = part, until
	d.flight.controls().setRateShare(part, until)
	d.changed()
}

// bucket is one rate limit, as a bucket of tokens: an event takes one when its delivery begins. It is a state machine
// without clock or lock: the time is passed in.
type bucket struct {
	limit  float64 // events a second, of all processes
	rate   float64 // of this one
	tokens float64
	at     time.Time // of tokens
}

func newBucket(r dispatcher.Rate) *bucket {
	if r.Events == 0 {
		return nil
	}
	return &bucket{limit: float64(r.Events) / r.Period.Seconds()}
}

// share changes this process's part of the limit.
func (b *bucket) share(part float64, now time.Time) {
	b.fill(now)
	b.rate = b.limit * part
	if b.fill(now); part == 0 {
		b.tokens = 0
	}
}

func (b *bucket) fill(now time.Time) {
	passed := max(0, now.Sub(b.at).Seconds())
	b.tokens = min(b.tokens+b.rate*passed, 1+b.rate*rateBurst.Seconds())
	b.at = now
}

// until is when there are n tokens; zero for never.
func (b *bucket) until(n float64, now time.Time) time.Time {
	if b.rate == 0 {
		return time.Time{}
	}
	wait := time.Duration((n - b.tokens) / b.rate * float64(time.Second))
	return now.Add(max(wait+1, time.Millisecond)) // rounded up
}

// supply is how many rows may be claimed now, while so many have not begun: those that may begin within rateSupply, and
// none while half of them wait. While the bucket idles, rows do not wait for tokens, but for a call or for others of their
// keys: then they leave the tokens to others, but for those that only their own topic could use. A nil bucket has no limit.
func (b *bucket) supply(waiting, own int, now time.Time) allotment {
	if b == nil {
		return allotment{}
	}
	if b.idles(now) {
		waiting = own
	}
	ahead := b.rate * rateSupply.Seconds()
	least := max(1, int(ahead/2))
	if rows := int(b.tokens+ahead) - waiting; rows >= least {
		return allotment{n: rows, by: byRate}
	}
	next := float64(least+waiting) - ahead
	if waiting > own {
		next = min(next, b.idle())
	}
	return allotment{by: byRate, next: b.until(next, now)}
}

// idle is how many tokens are there while none is waited for: more than come while events gather.
func (b *bucket) idle() float64 { return 1 + b.rate*gatherFor.Seconds() }

func (b *bucket) idles(now time.Time) bool {
	b.fill(now)
	return b.tokens >= b.idle()
}

// idles reports whether no limit of the topic is used up.
func (t *topic) idles(now time.Time) bool {
	return len(t.rates) > 0 && !slices.ContainsFunc(t.rates, func(b *bucket) bool { return !b.idles(now) })
}

// rates are the limits of a dispatcher and of its topics. They belong to a flight, whose lock guards them.
type rates struct {
	all     *bucket
	byTopic map[string]*bucket
	part    float64   // that this process may use
	over    time.Time // when it has none any more; zero for never
	held    bool      // this round left out a topic for a limit
}

func newRates(cfg dispatcher.Config) rates {
	r := rates{all: newBucket(cfg.RateLimit), byTopic: map[string]*bucket{}}
	for topic, limit := range cfg.TopicRateLimits {
		r.byTopic[topic] = newBucket(limit)
	}
	return r
}

// limit gives a topic its limits.
func (r *rates) limit(t *topic) {
	t.rate, t.rates = r.byTopic[t.name], nil
	for _, b := range []*bucket{t.rate, r.all} {
		if b != nil {
			t.rates = append(t.rates, b)
		}
	}
}

// limited reports whether there is a limit.
func (r *rates) limited() bool { return r.all != nil || len(r.byTopic) > 0 }

func (r *rates) share(part float64, now time.Time) {
	r.part = part
	if r.all != nil {
		r.all.share(part, now)
	}
	for _, b := range r.byTopic {
		b.share(part, now)
	}
}

// lapse ends a part whose time is over.
func (r *rates) lapse(now time.Time) {
	if r.part > 0 && !r.over.IsZero() && !now.Before(r.over) {
		r.share(0, now)
	}
}

// setRateShare is Dispatcher.SetRateShare.
func (c *controls) setRateShare(part float64, until time.Time) {
	f := (*flight)(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics.rates.share(part, time.Now())
	f.topics.rates.over = until
	f.signals.work.Signal()
}

// permits is how many events of the topic may begin now.
func (t *topic) permits(now time.Time) int {
	n := math.MaxInt
	for _, b := range t.rates {
		b.fill(now)
		n = min(n, int(b.tokens))
	}
	return n
}

// use notes that n events of the topic begin.
func (t *topic) use(n int) {
	for _, b := range t.rates {
		b.tokens -= float64(n)
	}
}

// tokenAt is when all limits of the topic have a token; zero for never.
func (t *topic) tokenAt(now time.Time) (at time.Time) {
	for _, b := range t.rates {
		if b.tokens < 1 && b.until(1, now).After(at) {
			at = b.until(1, now)
		}
	}
	return at
}
