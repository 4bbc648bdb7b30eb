package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	reason                   string
	otherContent             bool      // the digest of an insert or edit is not that of the row
	operated                 bool      // the operation that a resolve or a reopen names is in outbox_replays
	replay                   uuid.UUID // that operation
}

// row is an event's row as it is; status is empty when there is none.
type row struct {
	status, worker  string
	lease, attempts int64
	young           bool // it was created while the journal was on, and its retention is not over
	silent          bool // it is dead, and has no dead letter that says so: one that is open, or discarded
	closed          bool // it is dead, and none of its dead letters is open
	held            bool // its lease ends later than any that an engine gives
	late            bool // it is due later than an engine puts off any
}

// chain follows the records of one event in their order. It keeps the last of some kinds, and no more.
type chain struct {
	report func(Difference)
	// resolves counts the dead letters that an operation has resolved or reopened, and acks what was delivered that it had put back.
	resolves, acks map[uuid.UUID]int64

	event uuid.UUID
	row   row
	top   int64     // the highest lease
	by    uuid.UUID // the operation that put it back last, until it is delivered
	// last is the last record of the row.
	last *record
	// inserted, edited and resolved are the last record of their kind, and adopting that of an adoption about the event,
	// which only the schema's owner writes. handled is the last resolution of any kind.
	inserted, edited, resolved, handled, adopting *record
	gaveBack                                      bool // the last removal was an adoption's
	// replayed waits for the resolution of a dead letter in its transaction, withdrawn, which is such a resolution, for the withdrawal of
	// the event, and deleted for none to be open.
	replayed, withdrawn, deleted *record
	open                         int // how many dead letters the records leave open
}

// add checks the next record, of the same event or of another.
func (c *chain) add(r record, row row) {
	if c.event != r.event {
		c.end()
	}
	c.event, c.row = r.event, row
	c.settle(r.xid)
	switch r.operation {
	case adoption:
		c.adopting = &r // it is about the record that comes next
		return
	case "resolve", "reopen", "forget":
		c.deadLetter(r)
		return
	case "edit":
		c.edit(r)
		return
	}
	c.legal(r)
	switch last := c.last; {
	case last == nil:
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
	c.last = &r
}

// legal reports a change that no engine makes.
func (c *chain) legal(r record) {
	adopted := r.adopted(c.adopting)
	switch {
	case r.operation == "change" && r.stays() && (is(c.edited, r.xid) || is(c.inserted, r.xid)): // of the same statement, or the producer's own
	case !r.legal() && !adopted:
		c.reportf(Illegal, r, "no engine makes this change: %s", r.change())
	case r.before == "processing" && r.operation != "claim" && c.last != nil && c.last.operation == "claim" && c.last.xid == r.xid:
		c.reportf(Illegal, r, "it was claimed in the same transaction, so no worker delivered it: %s", r.change())
	case r.operation == "withdraw" && (r.lease > 0 || r.attempts > 0):
		c.reportf(Illegal, r, "a worker had claimed it before, so it may have been sent: %s", r.change())
	case r.operation == "insert" && c.last != nil && c.last.after == "" && !adopted && !c.gaveBack:
		c.reportf(Illegal, r, "it was removed, and is inserted again: it is delivered once more")
	}
	switch {
	case r.operation == "insert":
		c.inserted, c.edited = &r, nil
	case r.operation == "dead" && !is(c.handled, r.xid): // else it was discarded as it became dead
		c.open++
	case r.operation == "replay" && !is(c.resolved, r.xid):
		c.replayed = &r
	case r.operation == "withdraw":
		c.withdrawn = nil
	case r.operation == "delete" && r.before == "dead" && c.open > 0:
		c.deleted = &r
	case (r.operation == "ack" || adopted && r.after == "") && c.by != uuid.Nil: // what an adoption took back counts as delivered
		c.acks[c.by]++
		c.by = uuid.Nil
	}
	if r.after == "" {
		c.gaveBack = adopted
	}
}

// deadLetter notes what became of a dead letter. The row's record of the same statement comes before or after it. Without an
// operation retention resolves one, as expired, and removes it when it is resolved; and the owner's login resolves what no
// dispatcher serves, as unserved.
func (c *chain) deadLetter(r record) {
	switch {
	case r.operated:
		c.resolves[r.replay]++
	case r.reason == "withdrawn" && r.operation == "resolve":
		if !is(c.last, r.xid) || c.last.operation != "withdraw" { // withdraw changes the event first
			c.withdrawn = &r
		}
	case r.reason != "expired" && r.reason != "retention" && r.reason != "unserved":
		c.reportf(Illegal, r, "%s of its dead letter: neither an operation nor retention did it", strings.TrimSpace(r.operation+" "+r.reason))
	}
	switch r.operation {
	case "reopen":
		c.open++
		return
	case "forget":
		return
	}
	c.handled, c.open = &r, max(0, c.open-1)
	if r.reason == "replayed" {
		c.resolved, c.replayed, c.by = &r, nil, r.replay
	}
	if c.open == 0 {
		c.deleted = nil
	}
}

// edit notes a change of what never changes. In the transaction that inserts it an event is its producer's.
func (c *chain) edit(r record) {
	c.edited = &r
	if !is(c.inserted, r.xid) {
		c.reportf(Illegal, r, "no engine changes its %s", r.reason)
	}
}

// settle reports what its transaction, which is over, left undone.
func (c *chain) settle(xid string) {
	if r := c.replayed; r != nil && r.xid != xid {
		c.reportf(Illegal, *r, "it is pending again without an operation: none of its dead letters was resolved in this transaction")
		c.replayed = nil
	}
	if r := c.withdrawn; r != nil && r.xid != xid {
		c.reportf(Illegal, *r, "its dead letter was resolved as withdrawn, and the event was not withdrawn in this transaction")
		c.withdrawn = nil
	}
	if r := c.deleted; r != nil && r.xid != xid {
		c.reportf(Illegal, *r, "it was removed as resolved, and its dead letter is open")
		c.deleted = nil
	}
}

// end compares the last records with the row, and forgets the event.
func (c *chain) end() {
	defer func() { *c = chain{report: c.report, resolves: c.resolves, acks: c.acks} }()
	c.settle("")
	content := c.inserted
	if c.edited != nil {
		content = c.edited
	}
	if content != nil && content.otherContent {
		c.reportf(StateDiffers, *content, "its payload, headers, topic or keys are not those that the journal has a digest of")
	}
	if c.last == nil {
		return
	}
	r, is := c.last, c.row
	says, found := state(r.after, r.attempts, r.lease), state(is.status, is.attempts, is.lease)
	switch {
	case says != found:
		c.reportf(StateDiffers, *r, "the journal says %s, and the row is %s", says, found)
	case is.status == "processing" && is.worker != r.worker:
		c.reportf(StateDiffers, *r, "the journal says that worker %s holds it, and the row says worker %s", r.worker, is.worker)
	case is.silent, is.closed && c.open > 0:
		c.reportf(StateDiffers, *r, "it is dead, and no dead letter says so: none of its topic is open, or was discarded by an operation, so no list has it")
	case is.held:
		c.reportf(StateDiffers, *r, "it is leased for more than %s from now, and no engine gives such a lease: no worker takes it over", longestLease)
	case is.late && (r.operation == "nack" || r.operation == "release"):
		c.reportf(StateDiffers, *r, "it is put off for more than twice %s, and no engine does so: no worker delivers it before", longestLease)
	}
}

// is reports whether a record is of a transaction.
func is(r *record, xid string) bool { return r != nil && r.xid == xid }

// stays reports whether a change leaves the row in the state in which it was.
func (r record) stays() bool {
	return r.before == r.after && r.attempts == r.attemptsBefore && r.lease == r.leaseBefore
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

// rule is a change that engines make. Its names are those of the table in package dispatcher's documentation.
type rule struct {
	operation, before, after string
	attempts                 string // +1, -1, same or 0
	lease                    string // new or same
}

// rules are all changes that engines, replays, producers and retention make. "" means that there is no row.
var rules = []rule{
	{"insert", "", "pending", "0", "same"},
	{"claim", "pending", "processing", "+1", "new"},
	{"claim", "processing", "processing", "same", "new"},
	{"begin", "processing", "processing", "same", "same"},
	{"dead", "pending", "dead", "same", "same"},
	{"dead", "processing", "dead", "same", "same"},
	{"expire", "pending", "expired", "same", "same"},
	{"expire", "processing", "expired", "same", "same"},
	{"ack", "processing", "delivered", "same", "same"},
	{"ack", "processing", "", "same", "same"}, // delivered, where rows are not kept
	{"nack", "processing", "pending", "same", "same"},
	{"extend", "processing", "processing", "same", "same"},
	{"release", "processing", "pending", "-1", "same"},
	{"replay", "dead", "pending", "0", "same"},
	{"withdraw", "pending", "withdrawn", "same", "same"},
	{"withdraw", "dead", "withdrawn", "same", "same"},
	// Those that retention makes.
	{"delete", "delivered", "", "same", "same"},
	{"delete", "withdrawn", "", "same", "same"},
	{"delete", "expired", "", "same", "same"},
	{"delete", "dead", "", "same", "same"},
}

// legal reports whether an engine makes the change.
func (r record) legal() bool {
	for _, rule := range rules {
		if rule.operation == r.operation && rule.before == r.before && rule.after == r.after && r.follows(rule) {
			return true
		}
	}
	return false
}

// adoption is the operation of a record that a step of an adoption writes, in the transaction in which it moves the event
// or gives it back.
const adoption = "adopt"

// adopted reports whether an adoption makes the change, and has said so in this transaction: an event with the attempts
// that it had in their table, or one that is theirs again. That one waits, or its lease is over.
func (r record) adopted(said *record) bool {
	return said != nil && said.event == r.event && said.xid == r.xid &&
		(r.operation == "insert" && r.after == "pending" || r.operation == "change" && (r.before == "pending" || r.before == "processing") && r.after == "")
}

// follows reports whether attempts and lease are what the rule makes of them.
func (r record) follows(rule rule) bool {
	attempts := map[string]int64{"+1": r.attemptsBefore + 1, "-1": r.attemptsBefore - 1, "same": r.attemptsBefore, "0": 0}
	if r.attempts != attempts[rule.attempts] {
		return false
	}
	if rule.lease == "new" {
		return r.lease > r.leaseBefore
	}
	return r.lease == r.leaseBefore
}

// Bounds of a [Watch].
const (
	// WatchSince is the age of the oldest change that is compared.
	WatchSince = 24 * time.Hour
	// watchRecords is about how many records a look reads, and watchExamples how many differences it names.
	watchRecords, watchExamples = 50_000, 5
	// watchTime is the time in which a look begins pages. The monitor ends a look after 10 seconds, and then nothing of it
	// counts.
	watchTime = 4 * time.Second
)

// State is what a [Watch] has found.
type State struct {
	// On is false while the journal is off.
	On bool
	// At is the database's time of the newest look, and Records is how many that read.
	At      time.Time
	Records int64
	// Found counts the differences of the last whole pass, or of the pass under way when it has found more. Examples are the
	// first differences of that pass.
	Found    int64
	Examples []Difference
}

// Watch compares the events that changed within WatchSince with their records, a part with each look. A look continues
// where the last one ended; after the last event a new pass begins with the first. It is not safe for concurrent use.
type Watch struct {
	db       DB
	o        Options
	pass     State // under way
	lastPass State
}

// NewWatch returns a Watch of the schema, namespace and topics of the options.
func NewWatch(db DB, o Options) *Watch {
	o.Since, o.Limit, o.MaxRecords, o.MaxTime = WatchSince, watchExamples, watchRecords, watchTime
	return &Watch{db: db, o: o}
}

// Look compares the next part. It fails when the database does.
func (w *Watch) Look(ctx context.Context) (State, error) {
	r, err := Check(ctx, w.db, w.o)
	switch {
	case errors.Is(err, ErrOff):
		w.o.From, w.pass, w.lastPass = uuid.Nil, State{}, State{}
		return State{}, nil
	case err != nil:
		return State{}, err
	}
	w.pass.Found += r.Found
	w.pass.Examples = append(w.pass.Examples, r.Differences...)
	w.pass.Examples = w.pass.Examples[:min(len(w.pass.Examples), watchExamples)]
	state := w.lastPass
	if w.pass.Found > state.Found {
		state = w.pass
	}
	w.o.From = r.Next
	if !r.Partial {
		state, w.lastPass, w.pass, w.o.From = w.pass, w.pass, State{}, uuid.Nil
	}
	state.On, state.At, state.Records = true, r.Until, r.Records
	return state, nil
}
