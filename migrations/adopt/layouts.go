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
	// log is a table that does not record what was sent: the connector's slot does.
	log bool
}

// inHands is when a row is due that a worker has in its hands, where the table does not record until when.
const inHands = "now() + interval '1 minute'"

var presets = map[Layout]layout{
	M10: {
		table:   "m10_recovery.outbox",
		columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", "processed_at", "retry_count", "process_after", "claimed_at", "claimed_by"},
		id:      "id", position: "id", payload: "payload",
		fields: map[string]string{
			"payload": "{r}.payload", "type": "{r}.event_type", "aggregateType": "{r}.aggregate_type", "aggregateId": "{r}.aggregate_id",
			"created":  "coalesce({r}.created_at, now())",
			"due":      "coalesce(greatest({r}.process_after, {r}.claimed_at + interval '5 minutes'), {r}.created_at, now())",
			"attempts": "coalesce({r}.retry_count, 0)", "maxAttempts": noLimit, "retry": `'{"strategy": "PowerOfTwo"}'`,
		},
		open: "{r}.processed_at is null", complete: "processed_at = now(), claimed_at = null, claimed_by = null",
		reopen: "processed_at = null, process_after = e.next_attempt_at, retry_count = e.attempts, claimed_at = null, claimed_by = null",
		order:  "{r}.created_at, {r}.id",
	},
	Overview: {
		table:   "outbox.events",
		columns: []string{"id", "topic", "payload", "status", "attempt_count", "next_attempt_at", "created_at"},
		id:      "id", position: "created_at", payload: "payload",
		fields: map[string]string{
			"topic": "{r}.topic", "payload": "{r}.payload", "created": "{r}.created_at",
			"due":      "case when {r}.status = 'processing' then greatest({r}.next_attempt_at, " + inHands + ") else {r}.next_attempt_at end",
			"attempts": "{r}.attempt_count", "maxAttempts": noLimit, "retry": `'{"strategy": "Linear", "base": "60s", "max": "24h"}'`,
		},
		open: "{r}.status in ('pending', 'processing')", complete: "status = 'processed'",
		reopen: "status = 'pending', attempt_count = e.attempts, next_attempt_at = e.next_attempt_at",
		order:  "{r}.created_at, {r}.next_attempt_at",
	},
	Storage: {
		table: "public.storage_outbox",
		columns: []string{"outbox_id", "aggregate_id", "aggregate_type", "event_type", "event_payload", "event_metadata", "sequence_number", "created_at",
			"delivery_attempts", "delivery_status", "next_retry_at", "delivered_at", "target_topic", "partition_key",
			"max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier"},
		id: "outbox_id", position: "created_at", payload: "event_payload",
		fields: map[string]string{
			"topic": "{r}.target_topic", "payload": "{r}.event_payload", "type": "{r}.event_type", "aggregateType": "{r}.aggregate_type",
			"aggregateId": "{r}.aggregate_id", "key": "{r}.partition_key", "created": "{r}.created_at",
			// Their id and number are what consumers know; of the metadata, what can be a header.
			"headers": `(select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each({r}.event_metadata)
            where key <> '' and jsonb_typeof(value) in ('string', 'number', 'boolean'))
            || jsonb_build_object('outbox_id', {r}.outbox_id, 'sequence_number', {r}.sequence_number)`,
			"due": "case when {r}.delivery_status = 'processing' then greatest({r}.next_retry_at, " + inHands +
				") else coalesce({r}.next_retry_at, {r}.created_at) end",
			"attempts": "{r}.delivery_attempts", "maxAttempts": "least({r}.max_attempts, 1000)",
			"retry": `jsonb_build_object('strategy', 'Multiplier', 'base', {r}.base_delay_ms || 'ms', 'max', {r}.max_delay_ms || 'ms',
            'multiplier', {r}.backoff_multiplier::text, 'jitterPercent', 25)`,
		},
		open: "{r}.delivery_status in ('pending', 'processing', 'failed')", complete: "delivery_status = 'delivered', delivered_at = now()",
		reopen: "delivery_status = case e.attempts when 0 then 'pending' else 'failed' end, delivery_attempts = e.attempts, next_retry_at = e.next_attempt_at, delivered_at = null",
		order:  "{r}.created_at, {r}.sequence_number",
	},
	Debezium: {
		table:   "public.outboxevent",
		columns: []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
		id:      "id", payload: "payload",
		fields: map[string]string{
			"topic": "{r}.aggregatetype::text", "payload": "{r}.payload::jsonb", "type": "{r}.type::text",
			"aggregateType": "{r}.aggregatetype::text", "aggregateId": "{r}.aggregateid::text",
		},
		open: "false",
		log:  true,
	},
}

// noLimit is the retry budget of a row whose worker knows none: no dispatcher makes it dead.
const noLimit = "32767"

// ours are the names that a mapping of columns may have, in addition to status and completed.
var ours = []string{"id", "payload", "topic", "type", "aggregateType", "aggregateId", "key", "headers", "created", "due", "attempts"}

// layout returns that of the spec.
func (s Spec) layout() (layout, error) {
	if s.Layout == Columns {
		return mapped(s.Columns)
	}
	l, ok := presets[s.Layout]
	switch {
	case !ok:
		return l, fmt.Errorf("the layout %q is unknown; choose m10, overview, storage, debezium or columns", s.Layout)
	case len(s.Columns) > 0:
		return l, fmt.Errorf("the layout %s has its own columns; leave out the mapping, or choose the layout columns", s.Layout)
	}
	return l, nil
}

// mapped makes a layout of a mapping from our names to columns of theirs.
func mapped(columns map[string]string) (layout, error) {
	l := layout{fields: map[string]string{"maxAttempts": "null"}}
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		if err := l.mapColumn(name, columns[name]); err != nil {
			return l, err
		}
	}
	switch {
	case columns["id"] == "" || columns["payload"] == "":
		return l, errors.New("the mapping lacks id or payload; add id=COLUMN and payload=COLUMN")
	case (columns["status"] == "") == (columns["completed"] == ""):
		return l, errors.New("the mapping needs one of completed and status, which say what is to be sent; add completed=COLUMN, a time that is null until then, or status=COLUMN:OPEN:COMPLETE")
	}
	l.id, l.payload, l.position = columns["id"], columns["payload"], columns["id"]
	l.fields["payload"] += "::jsonb"
	for _, name := range []string{"topic", "type", "aggregateType", "aggregateId", "key"} {
		if l.fields[name] != "" {
			l.fields[name] += "::text"
		}
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
	orElse("due", "least("+l.fields["created"]+", now())") // a time of creation may be of another zone
	orElse("attempts", "0")
	l.order = "{r}." + quote(l.position) + ", {r}." + quote(l.id)
	return l, nil
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
	case name == "completed":
		l.open = "{r}." + quote(column) + " is null"
		set(&l.complete, "now()")
		set(&l.reopen, "null")
	case name == "status":
		parts := strings.Split(column, ":")
		if len(parts) != 3 || slices.Contains(parts, "") {
			return fmt.Errorf("the mapping of status is %q; write it COLUMN:OPEN:COMPLETE, such as state:NEW:SENT, or state:NEW,SENDING:SENT for more than one open value", column)
		}
		column = parts[0]
		var values []string
		for _, value := range strings.Split(parts[1], ",") {
			values = append(values, literal(value))
		}
		l.open = "{r}." + quote(column) + "::text in (" + strings.Join(values, ", ") + ")"
		set(&l.complete, literal(parts[2]))
		set(&l.reopen, values[0])
	case !slices.Contains(ours, name):
		return fmt.Errorf("the mapping has the unknown name %q; use %s, and status or completed", name, strings.Join(ours, ", "))
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
