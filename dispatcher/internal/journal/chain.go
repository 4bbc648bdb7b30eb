package journal

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// record is a record of the journal. A missing number is 0, and a missing text empty.
type record struct {
	event                    uuid.UUID
	at                       time.Time
	lsn, xid                 string
	operation, before, after string
	lease, leaseBefore       int64
	attempts, attemptsBefore int64
	worker                   string
	namespace, topic, login  string
}

// row is an event's row as it is; status is empty when there is none.
type row struct {
	status, worker  string
	lease, attempts int64
	young           bool // it was created while the journal was on, and its retention is not over
}

// chain follows the records of one event in their order. It keeps the last record, and no more.
type chain struct {
	report func(Difference)
	last   *record
	// adopting is the last record of an adoption about the event, which only the schema's owner writes.
	adopting *record
	row      row
	top      int64 // the highest lease
}

// add checks the next record, of the same event or of another.
func (c *chain) add(r record, row row) {
	if c.last != nil && c.last.event != r.event {
		c.end()
	}
	if r.operation == adoption {
		c.adopting = &r // it is about the record that comes next; the row stays as it was
		return
	}
	if !r.legal() && !r.adopted(c.adopting) {
		c.reportf(Illegal, r, "no engine makes this change: %s", r.change())
	}
	if r.operation == "discard" && c.last != nil {
		return // the row stays as it was
	}
	switch last := c.last; {
	case last == nil:
		c.top = 0
		if r.before != "" && row.young {
			c.reportf(Gap, r, "the first record is not its insert: %s", r.change())
		}
	case last.after != r.before || r.before != "" && (last.lease != r.leaseBefore || last.attempts != r.attemptsBefore):
		c.reportf(Gap, r, "the previous record left it %s, and this one found it %s: a change is not recorded",
			state(last.after, last.attempts, last.lease), state(r.before, r.attemptsBefore, r.leaseBefore))
	}
	if r.operation == "insert" {
		c.top = 0
	}
	if r.lease < c.top {
		c.reportf(TokenFell, r, "the lease number, which is the fencing token, fell from %d to %d", c.top, r.lease)
	}
	c.top = max(c.top, r.lease)
	c.last, c.row = &r, row
}

// end compares the last record with the row.
func (c *chain) end() {
	r, is := c.last, c.row
	c.last = nil
	if r == nil || r.operation == "discard" {
		return
	}
	says, found := state(r.after, r.attempts, r.lease), state(is.status, is.attempts, is.lease)
	switch {
	case says != found:
		c.reportf(StateDiffers, *r, "the journal says %s, and the row is %s", says, found)
	case is.status == "processing" && is.worker != r.worker:
		c.reportf(StateDiffers, *r, "the journal says that worker %s holds it, and the row says worker %s", r.worker, is.worker)
	}
}

func (c *chain) reportf(kind Kind, r record, format string, args ...any) {
	c.report(Difference{
		Kind: kind, Event: r.event.String(), Namespace: r.namespace, Topic: r.topic, What: fmt.Sprintf(format, args...),
		At: r.at.UTC(), LSN: r.lsn, Transaction: r.xid, Login: r.login,
	})
}

func (r record) change() string {
	return fmt.Sprintf("%s, from %s to %s", r.operation, state(r.before, r.attemptsBefore, r.leaseBefore), state(r.after, r.attempts, r.lease))
}

func state(status string, attempts, lease int64) string {
	if status == "" {
		return "gone"
	}
	return fmt.Sprintf("%s (attempts %d, lease %d)", status, attempts, lease)
}
