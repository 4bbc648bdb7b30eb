package pacer

import (
	"math"
	"time"
)

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
