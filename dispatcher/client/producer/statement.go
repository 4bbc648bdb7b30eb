package producer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The two statements, with a place for the schema. Each parameter says its type, so that they work in
// every mode of a driver: prepared, described each time, or with the simple protocol, as behind a pooler.
// The payload's limit is not theirs: it was checked already, on the text that the caller gave; the
// functions measure another one.
const (
	enqueueOne = `select id, inserted from %s.enqueue($1::text, $2::text, $3::jsonb, $4::text, $5::text, $6::text, $7::text, ` +
		`$8::uuid, $9::text, $10::jsonb, $11::interval, $12::uuid, 2147483647, $13::boolean, $14::jsonb)`
	enqueueMany = `select id, inserted from %s.enqueue_batch($1::text[], $2::text[], $3::jsonb[], $4::text[], $5::text[], $6::text[], $7::text[], ` +
		`$8::uuid[], $9::text[], $10::jsonb[], $11::interval[], $12::uuid[], 2147483647, $13::boolean[], $14::jsonb)`
)

// record is an event that was checked, as texts for PostgreSQL. nil means the function's default.
type record struct {
	event   *Event
	payload string
	headers *string
	options *string
	id      *string
}

// optional returns nil for an empty text.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s string) *string { return &s }

// interval is a duration as the server reads it, exact to the microsecond: 26:00:00.000000. PostgreSQL 14 takes no
// field above 2147483647, so more than 35 minutes would be too many microseconds for it.
func interval(d time.Duration) string {
	second := d.Truncate(time.Second)
	return fmt.Sprintf("%d:%02d:%02d.%06d", d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second,
		(d - second).Microseconds())
}

// columns are the record's parameters in their order: of enqueue as they are, of enqueue_batch as the
// elements of its arrays.
func (r *record) columns() [13]*string {
	e := r.event
	c := [13]*string{
		text(e.Namespace), text(e.Topic), text(r.payload), optional(e.EventType), optional(e.AggregateType),
		optional(e.AggregateID), optional(e.PartitionKey), 8: optional(e.DedupeKey), 9: r.headers, 11: r.id,
	}
	if e.TenantID != [16]byte{} {
		c[7] = text(e.TenantID.String())
	}
	if e.Delay > 0 {
		c[10] = text(interval(e.Delay))
	}
	if e.LockKey {
		c[12] = text("true")
	}
	return c
}

// size is what the record adds to a batch, in bytes.
func (r *record) size() (n int) {
	for _, c := range r.columns() {
		if c != nil {
			n += len(*c)
		}
	}
	return n
}

// arguments returns the arguments of enqueueOne. Where the function's default is not null, it is given: that costs the
// function less than to put it in.
func (r *record) arguments() []any {
	var args []any
	for i, c := range r.columns() {
		switch {
		case c != nil:
			args = append(args, *c)
		case i == 9:
			args = append(args, "{}")
		case i == 10:
			args = append(args, "0")
		case i == 12:
			args = append(args, "false")
		default:
			args = append(args, nil)
		}
	}
	if r.options == nil {
		return append(args, "{}")
	}
	return append(args, *r.options)
}

// batchArguments returns the arguments of enqueueMany. An array of nothing but nulls is left out.
func batchArguments(records []record, array func([]*string) any) []any {
	var columns [13][]*string
	for i := range columns {
		columns[i] = make([]*string, len(records))
	}
	options := make([]json.RawMessage, len(records))
	for n := range records {
		for i, c := range records[n].columns() {
			columns[i][n] = c
		}
		if o := records[n].options; o != nil {
			options[n] = json.RawMessage(*o)
		}
	}
	var args []any
	for i, column := range columns {
		switch {
		case !slices.ContainsFunc(column, func(s *string) bool { return s != nil }):
			args = append(args, nil)
		case i == 7 || i == 10 || i == 11 || i == 12: // no driver turns texts into their types
			args = append(args, arrayLiteral(column))
		default:
			args = append(args, array(column))
		}
	}
	if !slices.ContainsFunc(options, func(o json.RawMessage) bool { return o != nil }) {
		return append(args, "{}")
	}
	return append(args, compact(options))
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// arrayLiteral is an array as PostgreSQL writes it.
func arrayLiteral(texts []*string) string {
	var b strings.Builder
	for i, s := range texts {
		b.WriteByte("{,"[min(i, 1)])
		if s == nil {
			b.WriteString("NULL")
			continue
		}
		b.WriteByte('"')
		_, _ = arrayEscapes.WriteString(&b, *s)
		b.WriteByte('"')
	}
	return b.String() + "}"
}

// compact is a value as JSON. It is of types that can always be written.
func compact(v any) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
