package adopt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// layout is how rows of a table become events, in SQL. In an expression r is the row.
type layout struct {
	table   string   // the default
	columns []string // that it needs
	id      string   // the column of their primary key
	// position is the column that grows from row to row: rows after the greatest at the start are counted.
	position string
	// fields are expressions for the arguments of outbox_adopt, by their names in row.sql.
	fields map[string]string
	// open is the condition that the row is to be sent. complete and reopen are what an update sets; reopen has e, the
	// event, and makes the row opened.
	open, complete, reopen, opened string
	// mark is the column that says what was sent, where there is one. When it is a column of states, their counts are shown. known
	// are the states of a mapping whose others do not say whether a row is to be sent.
	mark   string
	states bool
	known  []string
	order  string
	// namespace is the column of it, where each row has its own.
	namespace string
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
	l.opened = l.open
	if s.Open != "" {
		l.open, l.known = "("+s.Open+")", nil
	}
	return l, nil
}

// chosen is the condition of the rows that are adopted, as a continuation, empty for all.
func (s Spec) chosen(l layout) string {
	if l.namespace == "" || s.Namespace == "" {
		return ""
	}
	return " and r." + quote(l.namespace) + "::text = " + literal(s.Namespace)
}

// mapped makes a layout of a mapping from our names to columns of theirs.
func mapped(columns map[string]string) (layout, error) {
	l := layout{fields: map[string]string{}}
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
	l.id, l.position, l.namespace = columns["id"], columns["id"], columns["namespace"]
	if columns["created"] != "" {
		l.position = columns["created"]
	}
	if attempts := l.fields["attempts"]; attempts != "" {
		l.fields["attempts"], l.fields["maxAttempts"] = triedAttempts(attempts), triedBudget(attempts)
	}
	l.order = "r." + quote(l.position) + ", r." + quote(l.id)
	return l, nil
}

// A row that was tried has as many attempts left as a dispatcher makes by default, because their worker's limit is not
// known, and none is made dead that was not sent.
func triedAttempts(attempts string) string {
	return "least(greatest(" + attempts + ", 0), 980)"
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
		l.mark, l.open = column, "r."+quote(column)+" is null"
		set(&l.complete, "clock_timestamp()")
		set(&l.reopen, "null")
	case name == "status":
		parts := strings.Split(column, ":")
		if len(parts) != 3 || slices.Contains(parts, "") || strings.Contains(column, ",") {
			return fmt.Errorf("the mapping of status is %q; write it COLUMN:OPEN:COMPLETE, such as state:NEW:SENT, and where more values are to be sent, or are not, the condition too: --open \"r.state in ('NEW', 'SENDING')\"", column)
		}
		column = parts[0]
		l.mark, l.states, l.known = column, true, parts[1:]
		l.open = "r." + quote(column) + " = " + literal(parts[1])
		set(&l.complete, literal(parts[2]))
		set(&l.reopen, literal(parts[1]))
	case !slices.Contains(ours, name):
		return fmt.Errorf("the mapping has the unknown name %q; use %s, and status, completed or sent", name, strings.Join(ours, ", "))
	default:
		l.fields[name] = "r." + quote(column)
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

// inHands is when a row is due that a worker has in its hands, where the table does not record until when.
const inHands = "now() + interval '1 minute'"

// noLimit is the retry budget of a row whose worker knows none: no dispatcher makes it dead.
const noLimit = "32767"

var presets = map[Layout]layout{
	ModKit: {
		table: "public.modkit_outbox_events",
		columns: []string{"id", "namespace", "topic", "tenant_id", "dedupe_key", "payload", "status", "attempts", "next_attempt_at",
			"locked_by", "locked_until", "created_at", "updated_at"},
		id: "id", position: "created_at", namespace: "namespace",
		fields: map[string]string{
			"namespace": "r.namespace", "topic": "r.topic", "tenantId": "r.tenant_id", "dedupeKey": "r.dedupe_key", "payload": "r.payload",
			"created": "r.created_at", "attempts": triedAttempts("r.attempts"), "maxAttempts": triedBudget("r.attempts"),
			"due": "case when r.status = 'processing' then greatest(r.next_attempt_at, r.locked_until) else r.next_attempt_at end",
		},
		mark: "status", states: true, open: "r.status in ('pending', 'processing')",
		complete: "status = 'delivered', locked_by = null, locked_until = null, updated_at = clock_timestamp()",
		reopen:   "status = 'pending', attempts = e.attempts, next_attempt_at = e.next_attempt_at, locked_by = null, locked_until = null, updated_at = now()",
		order:    "r.created_at, r.id",
	},
	M10: {
		table:   "m10_recovery.outbox",
		columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", "processed_at", "retry_count", "process_after", "claimed_at", "claimed_by"},
		id:      "id", position: "id",
		fields: map[string]string{
			"payload": "r.payload", "type": "r.event_type", "aggregateType": "r.aggregate_type", "aggregateId": "r.aggregate_id",
			"created": "r.created_at", "due": "coalesce(greatest(r.process_after, r.claimed_at + interval '5 minutes'), r.created_at)",
			"attempts": "r.retry_count", "maxAttempts": noLimit, "retry": `'{"strategy": "PowerOfTwo"}'`,
		},
		mark: "processed_at", open: "r.processed_at is null", complete: "processed_at = clock_timestamp(), claimed_at = null, claimed_by = null",
		reopen: "processed_at = null, process_after = e.next_attempt_at, retry_count = e.attempts, claimed_at = null, claimed_by = null",
		order:  "r.created_at, r.id",
	},
	Overview: {
		table:   "outbox.events",
		columns: []string{"id", "topic", "payload", "status", "attempt_count", "next_attempt_at", "created_at"},
		id:      "id", position: "created_at",
		fields: map[string]string{
			"topic": "r.topic", "payload": "r.payload", "created": "r.created_at",
			"due":      "case when r.status = 'processing' then greatest(r.next_attempt_at, " + inHands + ") else r.next_attempt_at end",
			"attempts": "r.attempt_count", "maxAttempts": noLimit, "retry": `'{"strategy": "Linear", "base": "60s", "max": "24h"}'`,
		},
		mark: "status", states: true, open: "r.status in ('pending', 'processing')", complete: "status = 'processed'",
		reopen: "status = 'pending', attempt_count = e.attempts, next_attempt_at = e.next_attempt_at",
		order:  "r.created_at, r.next_attempt_at",
	},
	Storage: {
		table: "public.storage_outbox",
		columns: []string{"outbox_id", "aggregate_id", "aggregate_type", "event_type", "event_payload", "event_metadata", "sequence_number", "created_at",
			"delivery_attempts", "delivery_status", "next_retry_at", "delivered_at", "target_topic", "partition_key",
			"max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier"},
		id: "outbox_id", position: "created_at",
		fields: map[string]string{
			"topic": "r.target_topic", "payload": "r.event_payload", "type": "r.event_type", "aggregateType": "r.aggregate_type",
			"aggregateId": "r.aggregate_id", "key": "r.partition_key", "created": "r.created_at",
			// Their id and number are what consumers know. Metadata that headers cannot have are refused.
			"headers": `coalesce(r.event_metadata, '{}') || jsonb_build_object('outbox_id', r.outbox_id)`, "sequence": "r.sequence_number",
			"due": "case when r.delivery_status = 'processing' then greatest(r.next_retry_at, " + inHands +
				") else coalesce(r.next_retry_at, r.created_at) end",
			// A row that is open is sent once at least.
			"attempts": "least(r.delivery_attempts, 999)", "maxAttempts": "least(greatest(r.max_attempts, r.delivery_attempts + 1), 1000)",
			"retry": `jsonb_build_object('strategy', 'Multiplier', 'base', least(r.base_delay_ms, 86400000) || 'ms', 'max', least(r.max_delay_ms, 86400000) || 'ms',
            'multiplier', greatest(r.backoff_multiplier, 1)::text, 'jitterPercent', 25)`,
		},
		mark: "delivery_status", states: true, open: "r.delivery_status in ('pending', 'processing', 'failed')",
		complete: "delivery_status = 'delivered', delivered_at = clock_timestamp()",
		reopen:   "delivery_status = case e.attempts when 0 then 'pending' else 'failed' end, delivery_attempts = e.attempts, next_retry_at = e.next_attempt_at, delivered_at = null",
		order:    "r.created_at, r.sequence_number",
	},
	Debezium: {
		table:   "public.outboxevent",
		columns: []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
		id:      "id",
		fields: map[string]string{
			"topic": "r.aggregatetype", "payload": "r.payload", "type": "r.type",
			"aggregateType": "r.aggregatetype", "aggregateId": "r.aggregateid",
		},
		open: "true",
		log:  true,
	},
}
