package scaling

import (
	"fmt"
	"math"
	"time"
)

const (
	// window is the time over which rates are taken, at least: as long as that of status.Status.DeliveredPerSecond.
	window = 15 * time.Second
	// apart is the least time between two samples that count.
	apart = 5 * time.Second
	// oldest is how old a sample may be that a rate begins with.
	oldest = 10 * time.Minute
	// counted is how long a count is valid that is followed by no other.
	counted = time.Minute
)

// Sample is what one look at a dispatcher's pods shows.
type Sample struct {
	// At is the time of the look, on the operator's clock.
	At time.Time
	// Counted is when the rows were counted, on the database's clock. Zero when no pod has reported a count.
	Counted time.Time
	// Pending are the rows that wait, now or for a retry. Live are those and the leased ones: a delivery makes them one less, a
	// failure does not.
	Pending, Live int64
	// Delivered is what all pods deliver in a second.
	Delivered float64
	// Replicas of the Deployment. Settled means that all of them are ready, of the newest template, and respond.
	Replicas int32
	Settled  bool
	// Held means that nothing is to be delivered, or that the pods are being replaced: no number follows from it.
	Held bool
	// Limits are what limits each pod that responds.
	Limits []Limit
}

// waits reports whether more rows wait than the pods deliver in a second: they have no rest.
func (x Sample) waits() bool { return x.Pending > 0 && float64(x.Pending) >= x.Delivered }

// History is the last samples of one dispatcher. The zero value is ready.
type History struct {
	samples []Sample
	first   time.Time // when the newest count was seen first, on the operator's clock
}

// Add adds a sample, and reports whether it has a count that is new. Of samples that follow each other within five
// seconds the first counts.
func (h *History) Add(x Sample) bool {
	if len(h.samples) > 0 {
		switch gap := x.Counted.Sub(h.samples[len(h.samples)-1].Counted); {
		case x.Counted.IsZero(), gap >= 0 && gap < apart:
			return false
		case gap < 0, gap > oldest: // another server with another clock, or nothing was seen for long
			h.samples = nil
		}
	}
	if x.Counted.IsZero() {
		return false
	}
	h.samples, h.first = append(h.samples, x), x.At
	for len(h.samples) > 2 && x.Counted.Sub(h.samples[1].Counted) >= window {
		h.samples = h.samples[1:]
	}
	return true
}

// Old reports whether the newest count is too old at a time, or there is none. Clocks are not compared: it is old when no
// other has followed it for a minute.
func (h *History) Old(now time.Time) bool { return len(h.samples) == 0 || now.Sub(h.first) > counted }

// Rates are what follows from some samples.
type Rates struct {
	// Arrival is how many rows become due in a second, and Delivered how many are delivered.
	Arrival, Delivered float64
	// Pending are the rows that wait.
	Pending int64
	// Busy means that the pods have had no rest.
	Busy bool
	// drain is by how many the live rows fall in a second.
	drain float64
}

// Rates returns the rates of the last samples. known is false while there are fewer than two.
func (h *History) Rates() (r Rates, known bool) {
	n := len(h.samples)
	if n < 2 {
		return Rates{}, false
	}
	from, to, before := h.samples[0], h.samples[n-1], h.samples[n-2]
	r.drain = float64(from.Live-to.Live) / to.Counted.Sub(from.Counted).Seconds()
	r.Delivered, r.Pending = to.Delivered, to.Pending
	r.Arrival = max(0, r.Delivered-r.drain)
	r.Busy = before.waits() && to.waits()
	return r, true
}

// ETA is the time until the pending rows are delivered at this pace, such as 4m, 3h or >1d; "never" when they do not become
// fewer, and empty when they are delivered within 10 seconds. It is coarse, so that it seldom changes.
func (r Rates) ETA() string {
	const soon = 10 // seconds
	switch {
	case !r.Busy || float64(r.Pending) < soon*r.Delivered:
		return ""
	case r.drain <= 0 || r.drain < 0.01*r.Delivered:
		return "never"
	}
	minutes := math.Ceil(float64(r.Pending) / r.drain / 60)
	switch {
	case minutes > 24*60:
		return ">1d"
	case minutes > 90:
		return fmt.Sprintf("%.0fh", math.Round(minutes/60))
	case minutes > 10:
		return fmt.Sprintf("%.0fm", math.Ceil(minutes/5)*5)
	}
	return fmt.Sprintf("%.0fm", minutes)
}
