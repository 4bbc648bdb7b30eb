package engine

import "errors"

var errPaused = errors.New("the dispatcher is paused; call Resume, or set state to Running")

// Pause keeps the dispatcher from claiming until [Dispatcher.Resume] is called. When it returns, no further
// delivery begins: rows that were claimed and not begun go back to pending with their attempt. Deliveries in
// flight end, and their outcomes are written back. Counts, probes and the comparison of the schema continue. A
// running RunOnce ends with an error. Pause may be called at any time, and again (CONTRACT C-105).
func (d *Dispatcher) Pause() {
	d.mu.Lock()
	d.paused = true
	r := d.run
	var rows []*row
	if r != nil {
		rows = r.flight.pause()
	}
	d.mu.Unlock()
	if r != nil {
		r.completer.release(rows)
		d.changed()
	}
}

// Resume ends what [Dispatcher.Pause] or Config.Paused began: Run claims at once.
func (d *Dispatcher) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = false
	if d.run != nil {
		d.run.flight.resume()
		d.changed()
	}
}

// pause takes back all rows whose delivery has not begun, which must be released, and refuses more. A claim may
// be under way.
func (f *flight) pause() []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = true
	return f.emptyQueues()
}

func (f *flight) resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = false
}

func (f *flight) isPaused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.suspended
}
