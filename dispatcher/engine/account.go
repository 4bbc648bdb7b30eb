package engine

// account counts the rows that this process has claimed and not yet written back, and what they take of memory. It bounds
// both. It belongs to a flight, whose lock guards it.
type account struct {
	maxRows    int   // beyond it nothing is claimed
	maxBytes   int64 // likewise
	rows       int
	bytes      int64  // of the rows, and those that stuck calls keep
	inFlight   []*row // queued, waiting in line or in delivery: their leases are kept. In no order
	inDelivery int    // of inFlight
	busyTopics int    // topics with rows in flight or calls
	writes     int    // how often rows were written back
	// forgetIdle is called when a topic has nothing in flight any more.
	forgetIdle func(*topic)
}

// add takes a claimed row into the account.
func (a *account) add(r *row) {
	a.rows++
	a.bytes += r.bytes
}

// settle takes rows out whose outcome is in the database, or which another worker has.
func (a *account) settle(rows []*row) {
	for _, r := range rows {
		a.rows--
		a.bytes -= r.bytes
	}
	a.writes++
}

// pin adds bytes that a stuck call keeps, or takes them off.
func (a *account) pin(t *topic, bytes int64) {
	t.rows.bytes += bytes
	a.bytes += bytes
}

// hasRoom reports whether more rows may be claimed.
func (a *account) hasRoom() bool { return a.rows <= a.maxRows && a.bytes < a.maxBytes }

// spare is the bytes that topics with rows in flight leave for others.
func (a *account) spare() int64 { return a.maxBytes / 8 }

// enter adds a row to a topic's and to all rows in flight.
func (a *account) enter(r *row, t *topic) {
	if t.idle() {
		a.busyTopics++
	}
	t.rows.all++
	t.rows.bytes += r.bytes
	r.topic = t
	a.inFlight = append(a.inFlight, r)
	r.place = len(a.inFlight)
}

// begin notes that the deliveries of n rows of a topic begin.
func (a *account) begin(t *topic, n int) {
	a.inDelivery += n
	t.rows.inDelivery += n
}

// leave removes rows from flight. The last one takes the place of each.
func (a *account) leave(rows ...*row) {
	for _, r := range rows {
		if r.place == 0 {
			continue
		}
		end := len(a.inFlight) - 1
		last := a.inFlight[end]
		a.inFlight[r.place-1], last.place = last, r.place
		a.inFlight[end], r.place = nil, 0
		a.inFlight = a.inFlight[:end]
		r.topic.rows.all--
		if r.delivery != nil {
			a.inDelivery--
			r.topic.rows.inDelivery--
		}
		r.topic.rows.bytes -= r.bytes
		a.dropIdle(r.topic)
	}
}

// dropIdle notes that a topic may have nothing in flight any more.
func (a *account) dropIdle(t *topic) {
	if t.idle() {
		a.busyTopics--
		a.forgetIdle(t)
	}
}

// idle reports whether nothing of the topic is in flight.
func (t *topic) idle() bool { return t.rows.all == 0 && t.calls.running == 0 }
