package pgstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// Events and small payloads are allocated in slabs. An event that is delivered slowly keeps its slabs in
	// memory, and with them all other events and payloads in these. So slabs are small.
	slabRows     = 64       // most events of a slab
	slabPayloads = 64 << 10 // most bytes of payloads and headers that a slab of several events keeps
	slabBytes    = 16 << 10 // bytes of a slab of payloads
)

// decoder reads the rows of a claim. Most of the time of a drain is spent here, so events and small payloads are
// cut from slabs, and repeated texts are shared.
type decoder struct {
	namespace string
	limit     int                // the most rows, if that is known
	shares    map[string]int     // by topic
	topic     string             // of the last row
	share     int                // and its index
	names     map[string]string  // topics, event types and aggregate types
	events    []dispatcher.Event // what is free of the slab
	held      int                // bytes that the slab's events keep
	bytes     []byte             // what is free of the slab of payloads
}

func newDecoder(namespace string, c claiming) *decoder {
	d := &decoder{namespace: namespace, shares: make(map[string]int, len(c.topics)), names: make(map[string]string, len(c.topics))}
	for i, topic := range c.topics {
		d.shares[topic], d.names[topic] = i, topic
		d.limit += int(c.limits[i])
	}
	return d
}

// columns of claim.sql, in its order. A statement may have more behind them.
const columns = 23

// record is a row of claim.sql: its fixed-width columns decoded, the others as bytes, nil for null.
type record struct {
	id                                                        uuid.UUID
	attempts, lease, seq                                      int64
	maxAttempts, number, suspicion                            int64 // 0 for null
	due                                                       int64 // as timeOf takes it
	created, faultSince, expires                              time.Time
	cut                                                       bool
	tenant                                                    uuid.NullUUID
	ended, topic, dedupe, partition, event, aggregate, aggrID []byte
	retry, headers, payload                                   []byte
}

// decode reads all rows. cut is the same in each.
func (d *decoder) decode(rows pgx.Rows) (out []row, cut bool, err error) {
	var rec record
	var read func(pgx.Rows) error
	for rows.Next() {
		if read == nil {
			read = rec.reader(rows.FieldDescriptions())
		}
		if err = read(rows); err != nil {
			rows.Close()
			return nil, false, err
		}
		e, unreadable := d.event(&rec)
		cut = rec.cut
		if len(out) == slabRows {
			out = slices.Grow(out, max(0, d.limit-slabRows)) // a large claim: likely a full one
		}
		out = append(out, row{e, d.share, rec.due, ending(rec.ended), unreadable, keyOf(rows)})
	}
	return out, cut, rows.Err()
}

// keyOf is the key_hash of a row, which is behind the columns of claim.sql in order per key; 0 for none.
func keyOf(rows pgx.Rows) (key int64) {
	switch values := rows.RawValues(); {
	case len(values) == columns:
	case rows.FieldDescriptions()[columns].Format != pgx.BinaryFormatCode:
		key, _ = strconv.ParseInt(string(values[columns]), 10, 64)
	case values[columns] != nil:
		key = int64(binary.BigEndian.Uint64(values[columns]))
	}
	return key
}

// event makes an event of a record. The error says which part of the row cannot be read; it harms no other row.
func (d *decoder) event(r *record) (*dispatcher.Event, error) {
	size := len(r.payload) + len(r.headers)
	if len(d.events) == 0 || d.held+size > slabPayloads {
		d.events, d.held = make([]dispatcher.Event, max(1, min(slabRows, slabPayloads/max(1, size)))), 0
	}
	d.held += size
	if string(r.topic) != d.topic { // rows of a topic mostly come together
		d.topic = d.intern(r.topic)
		d.share = d.shares[d.topic]
	}
	e := &d.events[0]
	d.events = d.events[1:]
	*e = dispatcher.Event{
		ID: r.id, Seq: r.seq, AggregateSequence: r.number, Namespace: d.namespace, Topic: d.topic, TenantID: r.tenant,
		DedupeKey: string(r.dedupe), PartitionKey: string(r.partition), EventType: d.intern(r.event),
		AggregateType: d.intern(r.aggregate), AggregateID: string(r.aggrID),
		Payload: d.copy(r.payload), CreatedAt: r.created,
		Attempt: int(r.attempts), LeaseNumber: r.lease, MaxAttempts: int(r.maxAttempts), FaultSince: r.faultSince, Expires: r.expires, Suspicion: int(r.suspicion),
	}
	var err error
	if e.Headers, err = decodeHeaders(r.headers); err != nil {
		return e, unreadable("headers", "headers", err)
	}
	if e.Backoff, err = decodeRetry(r.retry); err != nil {
		return e, unreadable("retry", "retry settings", err)
	}
	return e, nil
}

// decodeRetry reads a row's own policy, nil for none. Its names and defaults are those of the configuration's backoff.
func decodeRetry(data []byte) (dispatcher.Backoff, error) {
	if len(data) == 0 {
		return nil, nil
	}
	return dispatcher.ParseBackoff(data)
}

// unreadable is the failure to read a column of a row, by its name and by what it is.
func unreadable(column, what string, err error) error {
	return dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassDecode, Code: column},
		fmt.Errorf("the event's %s cannot be read: %w", what, err))
}

// intern returns a shared copy of a text that many rows have, such as a topic or a type.
func (d *decoder) intern(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	name, ok := d.names[string(text)]
	if !ok {
		name = string(text)
		d.names[name] = name
	}
	return name
}

// copy keeps a payload, whose bytes are the connection's.
func (d *decoder) copy(payload []byte) []byte {
	n := len(payload)
	if n > slabBytes/4 {
		return append([]byte(nil), payload...)
	}
	if len(d.bytes) < n {
		d.bytes = make([]byte, slabBytes)
	}
	kept := d.bytes[:n:n]
	d.bytes = d.bytes[n:]
	copy(kept, payload)
	return kept
}

// reader is what reads rows with these columns. Numbers, times and ids come in PostgreSQL's binary
// format, unless the pool is made for a protocol in which types are not known beforehand.
func (r *record) reader(fields []pgconn.FieldDescription) func(pgx.Rows) error {
	if len(fields) < columns {
		return r.scan // which says so
	}
	for _, f := range append(fields[3:10:10], fields[1], fields[15], fields[19], fields[20], fields[21], fields[22]) {
		if f.Format != pgx.BinaryFormatCode {
			return r.scan
		}
	}
	return r.parse
}

// parse reads a row whose numbers, times and ids are in binary format.
func (r *record) parse(rows pgx.Rows) error {
	v := rows.RawValues()
	if len(v[1]) != 16 || len(v[3]) != 4 || len(v[4]) != 8 || len(v[5]) != 8 || len(v[7]) != 8 || len(v[8]) != 8 {
		return errors.New("a claimed row has columns of other types than expected; migrate the schema to this version")
	}
	r.ended, r.id, r.topic = v[0], uuid.UUID(v[1]), v[2]
	r.attempts, r.lease = int64(binary.BigEndian.Uint32(v[3])), int64(binary.BigEndian.Uint64(v[4]))
	r.due = int64(binary.BigEndian.Uint64(v[5]))
	r.cut = len(v[6]) == 1 && v[6][0] != 0
	r.seq, r.created = int64(binary.BigEndian.Uint64(v[7])), creation(int64(binary.BigEndian.Uint64(v[8])))
	r.tenant, r.maxAttempts, r.number, r.suspicion, r.faultSince, r.expires = uuid.NullUUID{}, 0, 0, 0, time.Time{}, time.Time{}
	if len(v[9]) == 16 {
		r.tenant = uuid.NullUUID{UUID: uuid.UUID(v[9]), Valid: true}
	}
	if len(v[15]) == 2 {
		r.maxAttempts = int64(binary.BigEndian.Uint16(v[15]))
	}
	if len(v[19]) == 8 {
		r.number = int64(binary.BigEndian.Uint64(v[19]))
	}
	if len(v[20]) == 8 {
		r.faultSince = timeOf(int64(binary.BigEndian.Uint64(v[20])))
	}
	if len(v[21]) == 2 {
		r.suspicion = int64(binary.BigEndian.Uint16(v[21]))
	}
	if len(v[22]) == 8 {
		r.expires = creation(int64(binary.BigEndian.Uint64(v[22])))
	}
	r.dedupe, r.partition, r.event, r.aggregate, r.aggrID = v[10], v[11], v[12], v[13], v[14]
	r.retry, r.headers, r.payload = jsonOf(v[16]), jsonOf(v[17]), jsonOf(v[18])
	return nil
}

// epoch is where timestamptz begins, 2000, in seconds of Unix.
const epoch = 946_684_800

// timeOf is the time of a timestamptz: microseconds since 2000.
func timeOf(micros int64) time.Time { return time.Unix(epoch+micros/1e6, micros%1e6*1e3) }

// creation is timeOf for created_at and expires_at, within the years 1970 to 9999: an adopted row may be of -infinity, and no consumer
// takes such a time.
func creation(micros int64) time.Time {
	return timeOf(min(max(micros, microsOf(time.Unix(0, 0))), microsOf(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))))
}

// pgPositions are positions as two arguments. What is before all finite times of PostgreSQL is -infinity, and so is the
// zero value, which is the front of a range: a row may be due at the same time, of another zone.
func pgPositions(all []position) ([]pgtype.Timestamptz, []pgtype.UUID) {
	times, ids := make([]pgtype.Timestamptz, len(all)), make([]pgtype.UUID, len(all))
	for i, p := range all {
		ids[i] = pgUUID(p.id)
		if times[i] = (pgtype.Timestamptz{Time: p.at, Valid: true}); p.at.IsZero() && p.at.Location() == time.UTC || p.at.Year() < -4713 {
			times[i].InfinityModifier = pgtype.NegativeInfinity
		}
	}
	return times, ids
}

// micros is a timestamptz as it comes in binary format.
func micros(t pgtype.Timestamptz) int64 {
	switch t.InfinityModifier {
	case pgtype.NegativeInfinity:
		return math.MinInt64
	case pgtype.Infinity:
		return math.MaxInt64
	default:
		return microsOf(t.Time)
	}
}

func microsOf(t time.Time) int64 { return t.UnixMicro() - epoch*1e6 }

// jsonOf decodes a jsonb. In binary format its text has a version before it, which no JSON begins with.
func jsonOf(v []byte) []byte {
	if len(v) > 0 && v[0] == 1 {
		return v[1:]
	}
	return v
}

// scan reads a row in any format.
func (r *record) scan(rows pgx.Rows) error {
	var cut pgtype.Bool
	var due, created, expires pgtype.Timestamptz
	targets := make([]any, len(rows.FieldDescriptions())) // nil for those behind ours
	copy(targets, []any{&r.ended, (*[16]byte)(&r.id), &r.topic, &r.attempts, &r.lease, &due, &cut, &r.seq, &created, &r.tenant,
		&r.dedupe, &r.partition, &r.event, &r.aggregate, &r.aggrID,
		(*zeronull.Int8)(&r.maxAttempts), &r.retry, &r.headers, &r.payload, (*zeronull.Int8)(&r.number), (*zeronull.Timestamptz)(&r.faultSince), (*zeronull.Int8)(&r.suspicion), &expires})
	err := rows.Scan(targets...)
	r.due, r.cut, r.created = micros(due), cut.Bool, creation(micros(created))
	if r.expires = (time.Time{}); expires.Valid {
		r.expires = creation(micros(expires))
	}
	return err
}

// noHeaders is shared by the events without headers, which are most.
var noHeaders = map[string]string{}

// decodeHeaders reads a JSON object. A value that is not a string is kept as its JSON text, and null is not a
// header (CONTRACT C-16).
func decodeHeaders(data []byte) (map[string]string, error) {
	if len(data) == 0 || string(data) == "{}" {
		return noHeaders, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(raw))
	for name, value := range raw {
		text := string(value)
		if text == "null" {
			continue
		}
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return nil, err
			}
		}
		headers[name] = text
	}
	return headers, nil
}
