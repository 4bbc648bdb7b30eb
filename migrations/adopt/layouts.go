package adopt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// layout is how rows of a table become events, in SQL. In an expression {r} is the row.
type layout struct {
	table   string   // the default
	columns []string // that it needs
	id      string   // the column of their primary key
	// position is the column that grows from row to row: rows after the greatest at the start are counted.
	position string
	payload  string // the column that says whether a row was changed by a producer
	// fields are expressions for the arguments of outbox_adopt, by their names in body.sql.
	fields map[string]string
	// open is the condition that the row is to be sent. complete and reopen are what an update sets; reopen has e, the
	// event.
	open, complete, reopen string
	order                  string
	// status is the column of states, where there is one: opens are to be sent, and closed are not. Without open they are
	// the condition.
	status        string
	opens, closed []string
	// namespace is the column of it, where each row has its own.
	namespace string
	// exhausted is the condition that a row has no attempt left, and exhaustedGets what it gets.
	exhausted, exhaustedGets string
	// deletes is a worker that deletes what it has sent: each row is to be sent.
	deletes bool
	// log is a table that does not record what was sent: the connector's slot does.
	log bool
}

// keepsRows reports whether the outbox keeps rows whose events are not delivered, because their table may not have them.
func (l layout) keepsRows() bool { return l.log || l.deletes }

// ours are the names that a mapping of columns may have, in addition to status, completed and sent.
var ours = []string{"id", "payload", "topic", "type", "aggregateType", "aggregateId", "key", "headers", "created", "due", "attempts",
	"dedupeKey", "tenantId", "namespace"}

// layout returns the layout of the spec.
func (s Spec) layout() (l layout, err error) {
	var ok bool
	if s.Layout == Columns {
		if l, err = mapped(s.Columns); err != nil {
			return l, err
		}
	} else if l, ok = presets[s.Layout]; !ok {
		return l, fmt.Errorf("the layout %q is unknown; choose modkit, m10, overview, storage, debezium or columns", s.Layout)
	} else if len(s.Columns) > 0 {
		return l, fmt.Errorf("the layout %s has its own columns; leave out the mapping, or choose the layout columns", s.Layout)
	}
	if l.open == "" {
		l.open = "{r}." + quote(l.status) + "::text in (" + literals(l.opens) + ")"
	}
	return l, nil
}

// chosen is the condition of the rows that are adopted, empty for all.
func (s Spec) chosen(l layout) string {
	if l.namespace == "" || s.Namespace == "" {
		return ""
	}
	return "{r}." + quote(l.namespace) + "::text = " + literal(s.Namespace)
}

// mapped makes a layout of a mapping from our names to columns of theirs.
func mapped(columns map[string]string) (layout, error) {
	l := layout{fields: map[string]string{"maxAttempts": "null"}}
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		if err := l.mapColumn(name, columns[name]); err != nil {
			return l, err
		}
	}
	marks := 0
	for _, name := range []string{"status", "completed", "sent"} {
		if columns[name] != "" {
			marks++
		}
	}
	switch {
	case columns["id"] == "" || columns["payload"] == "":
		return l, errors.New("the mapping lacks id or payload; add id=COLUMN and payload=COLUMN")
	case marks != 1:
		return l, errors.New("the mapping needs one of completed, status and sent, which say what is to be sent; add completed=COLUMN, a time that is null until then, status=COLUMN:OPEN:COMPLETE, or sent=delete where the worker deletes what it has sent")
	}
	l.id, l.payload, l.position, l.namespace = columns["id"], columns["payload"], columns["id"], columns["namespace"]
	l.fields["payload"] += "::jsonb"
	for _, name := range []string{"topic", "type", "aggregateType", "aggregateId", "key", "dedupeKey", "namespace"} {
		if l.fields[name] != "" {
			l.fields[name] += "::text"
		}
	}
	if tenant := l.fields["tenantId"]; tenant != "" {
		l.fields["tenantId"] = tenant + "::text::uuid"
	}
	if headers := l.fields["headers"]; headers != "" {
		l.fields["headers"] = "coalesce(" + headers + "::jsonb, '{}')"
	}
	orElse := func(name, otherwise string) {
		if e := l.fields[name]; e != "" {
			otherwise = "coalesce(" + e + ", " + otherwise + ")"
		}
		l.fields[name] = otherwise
	}
	if columns["created"] != "" {
		l.position = columns["created"]
	}
	orElse("created", "now()")
	orElse("due", "clock_timestamp()") // in the order of the rows; when it was created may be of another zone
	if attempts := l.fields["attempts"]; attempts != "" {
		attempts = "coalesce(" + attempts + ", 0)"
		l.fields["attempts"], l.fields["maxAttempts"] = triedAttempts(attempts), triedBudget(attempts)
		l.exhausted, l.exhaustedGets = attempts+" >= 20", triedGets
	}
	l.order = "{r}." + quote(l.position) + ", {r}." + quote(l.id)
	return l, nil
}

// A row that was tried has as many attempts left as a dispatcher makes by default, because their worker's limit is not
// known, and none is made dead that was not sent.
const triedGets = "has 20 more, and so has each that was tried"

func triedAttempts(attempts string) string {
	return "least(greatest(" + attempts + ", 0), 980)::integer"
}
func triedBudget(attempts string) string {
	return "case when " + attempts + " > 0 then " + triedAttempts(attempts) + " + 20 end"
}

// mapColumn adds a line of a mapping.
func (l *layout) mapColumn(name, column string) error {
	set := func(to *string, value string) {
		if *to != "" {
			*to += ", "
		}
		*to += quote(column) + " = " + value
	}
	switch {
	case column == "":
		return fmt.Errorf("the mapping of %s names no column; write %s=COLUMN", name, name)
	case name == "sent":
		if column != "delete" {
			return fmt.Errorf("the mapping of sent is %q; write sent=delete for a worker that deletes what it has sent, or map status or completed", column)
		}
		l.open, l.deletes = "true", true
		return nil
	case name == "completed":
		l.open = "{r}." + quote(column) + " is null"
		set(&l.complete, "now()")
		set(&l.reopen, "null")
	case name == "status":
		parts := strings.Split(column, ":")
		if len(parts) != 3 || slices.Contains(parts, "") {
			return fmt.Errorf("the mapping of status is %q; write it COLUMN:OPEN:COMPLETE, such as state:NEW:SENT, or state:NEW,SENDING:SENT,FAILED where more values are open, or are not to be sent", column)
		}
		column = parts[0]
		l.status, l.opens, l.closed = column, strings.Split(parts[1], ","), strings.Split(parts[2], ",")
		set(&l.complete, literal(l.closed[0]))
		set(&l.reopen, literal(l.opens[0]))
	case !slices.Contains(ours, name):
		return fmt.Errorf("the mapping has the unknown name %q; use %s, and status, completed or sent", name, strings.Join(ours, ", "))
	default:
		l.fields[name] = "{r}." + quote(column)
	}
	switch name {
	case "due":
		set(&l.reopen, "e.next_attempt_at")
	case "attempts":
		set(&l.reopen, "e.attempts")
	}
	l.columns = append(l.columns, column)
	return nil
}
