package engine

import "slices"

// enqueue queues a row that may be delivered now.
func (f *flight) enqueue(r *row) {
	t := r.topic
	if len(t.queued) == 0 {
		f.waiting = append(f.waiting, t)
	}
	t.insert(r)
	f.work.Signal()
}

// addInFlight adds a row to a topic's and to all rows in flight.
func (f *flight) addInFlight(r *row, t *topic) {
	if t.count == 0 && t.running == 0 {
		f.inUse++
	}
	t.count++
	t.bytes += r.bytes
	r.topic = t
	f.inFlight = append(f.inFlight, r)
	r.place = len(f.inFlight)
}

// removeInFlight removes a row, and puts the last one in its place.
func (f *flight) removeInFlight(r *row) {
	if r.place == 0 {
		return
	}
	end := len(f.inFlight) - 1
	last := f.inFlight[end]
	f.inFlight[r.place-1], last.place = last, r.place
	f.inFlight[end], r.place = nil, 0
	f.inFlight = f.inFlight[:end]
	r.topic.count--
	if r.delivery != nil {
		f.begun--
		r.topic.begun--
	}
	r.topic.bytes -= r.bytes
	f.dropIdle(r.topic)
}

func (f *flight) removeAllInFlight(rows []*row) {
	for _, r := range rows {
		f.removeInFlight(r)
	}
}

// dropIdle notes that a topic may have nothing in flight any more.
func (f *flight) dropIdle(t *topic) {
	if t.count == 0 && t.running == 0 {
		f.inUse--
		f.forgetIdle(t)
	}
}

// unqueueTopic takes back those of one topic.
func (f *flight) unqueueTopic(t *topic) (rows []*row) {
	rows, t.queued = t.queued, nil
	f.waiting = slices.DeleteFunc(f.waiting, nothingQueued)
	rows = append(rows, f.keys.disband(t.name)...)
	f.removeAllInFlight(rows)
	f.notifyLoop()
	return rows
}

// emptyQueues takes back all rows whose delivery has not begun: they must be released.
func (f *flight) emptyQueues() (rows []*row) {
	for _, t := range f.waiting {
		rows = append(rows, t.queued...)
		t.queued = nil
	}
	f.waiting = nil
	rows = append(rows, f.keys.disband("")...)
	f.removeAllInFlight(rows)
	f.notifyLoop()
	return rows
}

func nothingQueued(t *topic) bool { return len(t.queued) == 0 }
