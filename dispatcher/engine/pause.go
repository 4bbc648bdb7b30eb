package engine

import "errors"

var errPaused = errors.New("the dispatcher is paused; call Resume, or set state to Running")

// Pause keeps the dispatcher from claiming until [Dispatcher.Resume] is called. When it returns, no further
// delivery begins: rows that were claimed and not begun go back to pending with their attempt. Deliveries in
// flight end, and their outcomes are written back. Counts, probes and the comparison of the schema continue. A
// running RunOnce ends with an error. Pause may be called at any time, and again (CONTRACT C-105).
func (d *Dispatcher) Pause() {
	d.takeBack(func(f *flight) []*row { return f.controls().setPaused(true) })
}

// Resume ends what [Dispatcher.Pause] or Config.Paused began: Run claims at once.
func (d *Dispatcher) Resume() {
	d.takeBack(func(f *flight) []*row { return f.controls().setPaused(false) })
}

// controls is the door of Dispatcher's methods to a flight.
type controls flight

// controls is the flight as the Dispatcher's methods see it.
func (f *flight) controls() *controls { return (*controls)(f) }

// setPaused begins or ends a pause. While it lasts rows are refused. It takes back all rows whose delivery has not begun, which
// must be released: a claim may be under way.
func (c *controls) setPaused(paused bool) []*row {
	f := (*flight)(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.entry.paused = paused; !paused {
		return nil
	}
	return f.takeBack(nil)
}

func (c *controls) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entry.paused
}
