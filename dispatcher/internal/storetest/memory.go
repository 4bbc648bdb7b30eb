package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Memory is an outbox in memory that passes [Exercise]. In a bubble of package synctest it does in virtual time at once
// what takes hours of a database's clock. It is a [dispatcher.Store] itself, of the namespace "" and the zero worker.
type Memory struct {
	*rows
	namespace string
	worker    uuid.UUID
}

// rows are what all stores of a Memory share. The settings are for before the first call.
type rows struct {
	// PayloadBytes, when set, is the size of every payload, which is made again for each claim.
	PayloadBytes int
	// OverRate, when set, are the topics whose tenants have used their rates. Then no row is claimed.
	OverRate []string
	// DeleteDelivered removes a row at its ack.
	DeleteDelivered bool

	mu    sync.Mutex
	byID  map[uuid.UUID]*memoryRow
	order []*memoryRow
	live  map[place][]*memoryRow // those that are neither delivered nor dead, by their seq: a claim looks at these alone
	names []place                // in the order of their first event
	lease int64
	seq   int64
}

type place struct{ namespace, topic string }

// memoryRow is a row. The attempts, the lease and the suspicion are those of its event.
type memoryRow struct {
	event                      dispatcher.Event
	unreadable                 error
	size                       int64
	status, failed, deadReason string
	due, locked, updated       time.Time
	firstDue                   time.Time
	asDue                      time.Time // the place in the order of a claim
	asID                       uuid.UUID
	holder                     uuid.UUID
	failures                   []Attempt
	deadLetters                []DeadLetter
}

var _ interface {
	Outbox
	dispatcher.Store
} = (*Memory)(nil)

// NewMemory returns an empty outbox.
func NewMemory() *Memory {
	return &Memory{rows: &rows{byID: map[uuid.UUID]*memoryRow{}, live: map[place][]*memoryRow{}}}
}

// Store returns a store on the same rows for a worker and a namespace.
func (m *Memory) Store(namespace string, worker uuid.UUID) dispatcher.Store {
	return &Memory{rows: m.rows, namespace: namespace, worker: worker}
}

// Add enqueues n events of a topic, due now, in the namespace of the store.
func (m *Memory) Add(topic string, n int) { m.AddLike(dispatcher.Event{Topic: topic}, n) }

// AddLike enqueues n events that differ from e in their ids alone, due now, in the namespace of the store.
func (m *Memory) AddLike(e dispatcher.Event, n int) {
	events := make([]Event, n)
	for i := range events {
		e.ID, e.Namespace = uuid.Must(uuid.NewV7()), m.namespace
		events[i].Event = e
	}
	m.Enqueue(events...)
}

// IDs are the ids of all rows in the order in which they were enqueued.
func (m *Memory) IDs() []uuid.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := make([]uuid.UUID, len(m.order))
	for i, r := range m.order {
		ids[i] = r.event.ID
	}
	return ids
}

// Count is how many rows of a topic have a status.
func (m *Memory) Count(topic, status string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.order {
		if r.event.Topic == topic && r.status == status {
			n++
		}
	}
	return n
}

// Attempts is the sum of what the rows of a topic have spent.
func (m *Memory) Attempts(topic string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.order {
		if r.event.Topic == topic {
			n += r.event.Attempt
		}
	}
	return n
}

// Enqueue adds events, all at one time, which is when they were created unless they say when.
func (m *Memory) Enqueue(events ...Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, e := range events {
		m.seq++
		r := &memoryRow{event: e.Event, status: "pending", due: now.Add(e.Delay), updated: now}
		if r.event.Seq = m.seq; r.event.CreatedAt.IsZero() {
			r.event.CreatedAt = now
		}
		if r.firstDue = r.event.CreatedAt; r.due.After(r.firstDue) {
			r.firstDue = r.due
		}
		r.size = int64(len(e.Payload) + len(e.RawHeaders))
		r.unreadable = decode(&r.event, e)
		m.byID[e.ID] = r
		m.order = append(m.order, r)
		at := place{e.Namespace, e.Topic}
		if _, known := m.live[at]; !known {
			m.names = append(m.names, at)
		}
		m.live[at] = append(m.live[at], r)
	}
}

// change does something with a row, when it is there.
func (m *Memory) change(id uuid.UUID, do func(*memoryRow)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.byID[id]; r != nil {
		do(r)
	}
}

// Row reads a row: the zero Row when there is none.
func (m *Memory) Row(id uuid.UUID) (row Row) {
	m.change(id, func(r *memoryRow) {
		row = Row{Status: r.status, Attempts: r.event.Attempt, Lease: r.event.LeaseNumber, NextAttemptAt: r.due, LastError: r.failed, DeadReason: r.deadReason, UpdatedAt: r.updated}
		if r.status == "processing" {
			row.LockedBy, row.LockedUntil = uuid.NullUUID{UUID: r.holder, Valid: true}, r.locked
		}
	})
	return row
}

// Event reads the event of a row as it is now: the zero Event when there is none.
func (m *Memory) Event(id uuid.UUID) (e dispatcher.Event) {
	m.change(id, func(r *memoryRow) { e = r.event })
	return e
}

// Failures reads the last failed attempts of a row, oldest first.
func (m *Memory) Failures(id uuid.UUID) (all []Attempt) {
	m.change(id, func(r *memoryRow) { all = slices.Clone(r.failures) })
	return all
}

// DeadLetters reads the dead letters of a row, oldest first.
func (m *Memory) DeadLetters(id uuid.UUID) (all []DeadLetter) {
	m.change(id, func(r *memoryRow) { all = slices.Clone(r.deadLetters) })
	return all
}

// Revive puts a dead row back to pending with the attempts.
func (m *Memory) Revive(id uuid.UUID, attempts int) {
	m.change(id, func(r *memoryRow) {
		r.status, r.deadReason, r.due, r.event.Attempt, r.event.Suspicion = "pending", "", time.Now(), attempts, 0
		at := place{r.event.Namespace, r.event.Topic}
		if !slices.Contains(m.live[at], r) {
			m.live[at] = append(m.live[at], r)
			slices.SortFunc(m.live[at], func(a, b *memoryRow) int { return cmp.Compare(a.event.Seq, b.event.Seq) })
		}
	})
}

// Suspect sets a row's suspicion to the limit.
func (m *Memory) Suspect(id uuid.UUID) {
	m.change(id, func(r *memoryRow) { r.event.Suspicion = suspect })
}

// Resolve marks the open dead letters of a row as handled.
func (m *Memory) Resolve(id uuid.UUID) {
	m.change(id, func(r *memoryRow) {
		for i := range r.deadLetters {
			r.deadLetters[i].Resolved = true
		}
	})
}

// Due makes a pending row due now.
func (m *Memory) Due(id uuid.UUID) { m.change(id, func(r *memoryRow) { r.due = time.Now() }) }

// Discard marks a row delivered, as a person does.
func (m *Memory) Discard(id uuid.UUID) {
	m.change(id, func(r *memoryRow) { r.status = "delivered" })
}

// Now is the time of this machine, or of the bubble.
func (*Memory) Now() time.Time { return time.Now() }

// suspect is the suspicion at which the end of a lease makes a row dead.
const suspect = 5

// decode reads headers and retry settings as a store does.
func decode(to *dispatcher.Event, e Event) error {
	if to.Headers == nil {
		to.Headers = map[string]string{}
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(cmp.Or(e.RawHeaders, "{}")), &raw); err != nil {
		return err
	}
	for name, value := range raw {
		text := string(value)
		if bytes.HasPrefix(value, []byte(`"`)) {
			if err := json.Unmarshal(value, &text); err != nil {
				return err
			}
		}
		if text != "null" {
			to.Headers[name] = text
		}
	}
	if e.Retry == "" {
		return nil
	}
	var err error
	to.Backoff, err = dispatcher.ParseBackoff([]byte(e.Retry))
	return err
}

// unfinished are the rows of a topic that are neither delivered nor dead, by their seq.
func (m *Memory) unfinished(topic string) []*memoryRow {
	at := place{m.namespace, topic}
	if _, known := m.live[at]; known {
		m.live[at] = slices.DeleteFunc(m.live[at], func(r *memoryRow) bool { return r.status == "delivered" || r.status == "dead" || r.status == "expired" })
	}
	return m.live[at]
}

// dead makes a row dead with its record, and returns what a claim reports of it.
func (r *memoryRow) dead(now time.Time, reason dispatcher.DeadReason, cause dispatcher.Cause, record DeadLetter) dispatcher.DeadEvent {
	e := &r.event
	r.status, r.deadReason, r.updated, e.Suspicion = "dead", string(reason), now, 0
	record.Namespace, record.Topic, record.Reason, record.Attempts, record.DeadAt = e.Namespace, e.Topic, string(reason), e.Attempt, now
	record.Class, record.Code, record.Place = cause.Class, cause.Code, cause.Place
	record.Fingerprint, record.Failures = dispatcher.Fingerprint(e.Topic, reason, cause), slices.Clone(r.failures)
	r.deadLetters = append(r.deadLetters, record)
	return dispatcher.DeadEvent{ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: reason, Cause: cause, Fingerprint: record.Fingerprint}
}

// held writes back the rows that the worker holds under their leases.
func (m *Memory) held(leases []dispatcher.Lease, write func(i int, r *memoryRow, now time.Time)) (lost []dispatcher.Lease, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for i, l := range leases {
		if r := m.byID[l.ID]; r == nil || r.status != "processing" || r.event.LeaseNumber != l.Number || r.holder != m.worker {
			lost = append(lost, l)
		} else {
			r.updated = now
			write(i, r, now)
		}
	}
	return lost, nil
}

// Ack marks rows delivered, or removes them. It never fails.
func (m *Memory) Ack(_ context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow, _ time.Time) {
		r.status, r.event.Suspicion = "delivered", 0
		if m.DeleteDelivered {
			delete(m.byID, r.event.ID)
			m.order = slices.DeleteFunc(m.order, func(other *memoryRow) bool { return other == r })
		}
	})
}

// Nack puts rows back to pending, or makes them dead. It never fails.
func (m *Memory) Nack(_ context.Context, failures []dispatcher.Failure) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(failures))
	reasons := map[dispatcher.Lease]dispatcher.DeadReason{}
	for i, f := range failures {
		leases[i], reasons[f.Lease] = f.Lease, f.Reason
	}
	lost, err := m.held(leases, func(i int, r *memoryRow, now time.Time) {
		f := failures[i]
		cause := dispatcher.Cause{Class: storable(f.Cause.Class, 300), Code: storable(f.Cause.Code, 300), Place: storable(f.Cause.Place, 300)}
		r.failures = append(r.failures, Attempt{Cause: cause, At: now, Attempt: r.event.Attempt, Error: storable(f.Error, 300)})
		r.failures = slices.Clone(r.failures[max(0, len(r.failures)-5):])
		r.failed = storable(f.Error, 2000)
		if f.Reason != "" {
			r.dead(now, f.Reason, cause, DeadLetter{Worker: m.worker, Error: r.failed, Response: storable(f.Response, 1024)})
		} else {
			r.status, r.due, r.event.Suspicion = "pending", now.Add(f.Delay), 0
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(lost, func(l dispatcher.Lease) bool { // an earlier try made it dead
		r := m.byID[l.ID]
		return r != nil && r.status == "dead" && r.event.LeaseNumber == l.Number && r.deadReason == string(reasons[l])
	}), err
}

// storable makes a text valid UTF-8 without NUL, and cuts it to a length in bytes.
func storable(text string, most int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	if len(text) > most {
		for !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return text
}

// Release puts rows back to pending with their attempt. It never fails.
func (m *Memory) Release(_ context.Context, returns []dispatcher.Return) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(returns))
	for i, r := range returns {
		leases[i] = r.Lease
	}
	return m.held(leases, func(i int, r *memoryRow, now time.Time) {
		r.status, r.event.Suspicion = "pending", 0
		r.event.Attempt--
		if returns[i].Delay > 0 {
			r.due = now.Add(returns[i].Delay)
		}
		if returns[i].Error != "" {
			r.failed = storable(returns[i].Error, 2000)
			if r.event.FaultSince.IsZero() {
				r.event.FaultSince = now
			}
		}
	})
}

// Extend moves the end of leases. It never fails.
func (m *Memory) Extend(_ context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow, now time.Time) { r.locked = now.Add(lease) })
}

// Begin counts that the delivery of suspects begins. It never fails.
func (m *Memory) Begin(_ context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow, _ time.Time) { r.event.Suspicion++ })
}

// Outlive takes back what Begin counted. It never fails.
func (m *Memory) Outlive(_ context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow, _ time.Time) { r.event.Suspicion = 1 })
}

// Schema is always ready. It never fails.
func (*Memory) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady, Version: 1, Required: 1}, nil
}

// tooLarge is the error of a row above the limit of bytes.
func tooLarge(size, most int64) string {
	return fmt.Sprintf("the event has %d bytes, more than %d", size, most)
}
