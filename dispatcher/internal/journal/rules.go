package journal

// rule is a change that engines make. Its names are those of the table in package dispatcher's documentation.
type rule struct {
	operation, before, after string
	attempts                 string // +1, -1, same or 0
	lease                    string // new or same
}

// rules are all changes that engines, replays and retention make. "" means that there is no row.
var rules = []rule{
	{"insert", "", "pending", "0", "same"},
	{"claim", "pending", "processing", "+1", "new"},
	{"claim", "processing", "processing", "same", "new"},
	{"begin", "processing", "processing", "same", "same"},
	{"dead", "pending", "dead", "same", "same"},
	{"dead", "processing", "dead", "same", "same"},
	{"ack", "processing", "delivered", "same", "same"},
	{"ack", "processing", "", "same", "same"}, // delivered, where rows are not kept
	{"nack", "processing", "pending", "same", "same"},
	{"extend", "processing", "processing", "same", "same"},
	{"release", "processing", "pending", "-1", "same"},
	{"replay", "dead", "pending", "0", "same"},
	// Those that retention makes.
	{"delete", "delivered", "", "same", "same"},
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
