package pacer

import "time"

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
	lastCalls   int // calls of the last window
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
