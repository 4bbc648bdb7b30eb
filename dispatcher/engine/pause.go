package engine

import "errors"

var errPaused = errors.New("the dispatcher is paused; call Resume, or set state to Running")

// Pause keeps the dispatcher from claiming until [Dispatcher.Resume] is called. When it returns, no further
// delivery begins: rows that were claimed and not begun go back to pending with their attempt. Deliveries in
// flight end, and their outcomes are written back. Counts, probes and the comparison of the schema continue. A
// running RunOnce ends with an error. Pause may be called at any time, and again (CONTRACT C-105).
func (d *Dispatcher) Pause() { d.takeBack((*flight).pause) }

// Resume ends what [Dispatcher.Pause] or Config.Paused began: Run claims at once.
func (d *Dispatcher) Resume() { d.takeBack((*flight).resume) }

// pause takes back all rows whose delivery has not begun, which must be released, and refuses more. A claim may
// be under way.
func (f *flight) pause() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = true
	return f.emptyQueues()
}

func (f *flight) resume() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = false
	return nil
}

func (f *flight) isPaused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.suspended
}
