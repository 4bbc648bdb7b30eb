// Package deadletters reads an outbox's dead letters: the filter, the groups, the dead letters, and the history of an
// event. It is plain data, which the control plane may import too.
//
// A [Source] reads. Package pgreader has the one on PostgreSQL. [Handler] serves a source over HTTP, and
// [Client] is the source at the other end of it. Package deadcmd has the commands, which work on any of them.
//
// Nothing here writes (CONTRACT C-42 has what changes dead letters). A payload and headers are returned on request only.
package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Bounds of what a [Source] returns.
const (
	// DefaultLimit is how many dead letters a page has unless the request says otherwise. MaxLimit is the most that a request may say.
	DefaultLimit = 50
	MaxLimit     = 500
	// MaxGroups is the most groups, or counts, that are read. The count of a group is exact up to GroupCap, with many large ones
	// up to an equal part of 100,000, and above it where the table is small; else it is an estimate.
	MaxGroups = 1000
	GroupCap  = dispatcher.DepthCap
	// CountCap is the most dead letters of which the tenants, types or aggregates are counted: of each group the newest, up to
	// an equal part, and of MaxGroups groups.
	CountCap = 50_000
	// MaxHistory is the most dead letters in the history of an event: the newest.
	MaxHistory = 100
	// MaxRecords is the most records of the journal in the history of an event: the newest.
	MaxRecords = 500
	// MaxPayload is the most bytes of payload and headers that are returned.
	MaxPayload = 4 << 20
)

// ErrNotFound says that there is no such dead letter or event.
var ErrNotFound = errors.New("not found")

// ErrInvalidRequest says that the request is at fault, and not the source.
var ErrInvalidRequest = errors.New("invalid request")

// Invalid returns err as an ErrInvalidRequest, in its words. It never returns nil.
func Invalid(err error) error { return &invalidError{err} }

type invalidError struct{ err error }

func (e *invalidError) Error() string        { return e.err.Error() }
func (e *invalidError) Unwrap() error        { return e.err }
func (e *invalidError) Is(target error) bool { return target == ErrInvalidRequest }

// Source reads the dead letters of a dispatcher: those of its namespace and topics. It changes nothing.
// Its methods are safe for concurrent use. They fail when the source cannot be read, and wrap ErrInvalidRequest for a
// request that is not valid.
type Source interface {
	// Groups counts the open dead letters that match by their fingerprint, the largest group first. It fails for a
	// filter that is not valid or that chooses resolved dead letters, and when the source cannot be read.
	Groups(ctx context.Context, f Filter) (Groups, error)
	// CountBy counts the open dead letters that match by their tenant, type or aggregate, the largest count first. It fails as
	// Groups does, and for a By that is unknown.
	CountBy(ctx context.Context, f Filter, by By) (Counts, error)
	// List returns a page of the dead letters that match, the newest first.
	// It fails for a request that is not valid, and when the source cannot be read.
	List(ctx context.Context, r ListRequest) (Page, error)
	// Show returns the dead letter with an id, which is a number, or the newest one of an event, whose id is a UUID.
	// It wraps ErrNotFound when there is none, and fails when the source cannot be read.
	Show(ctx context.Context, id string, payload bool) (DeadLetter, error)
	// Event returns the history of the event with an id, or else with a dedupe key.
	// It wraps ErrNotFound when there is none, and fails when the source cannot be read.
	Event(ctx context.Context, id string, payload bool) (History, error)
}

// ListRequest is a request for a page.
type ListRequest struct {
	Filter
	// Limit is the most dead letters, from 1 to MaxLimit. 0 means DefaultLimit.
	Limit int
	// After is the Next of the page before. 0 means the first page.
	After int64
}

// Validate fails when the request is not valid. The error has each fault with its remedy.
func (r ListRequest) Validate() error {
	err := r.Filter.Validate()
	if r.Limit < 0 || r.Limit > MaxLimit {
		err = errors.Join(err, fmt.Errorf("limit: %d is not from 1 to %d; choose one that is", r.Limit, MaxLimit))
	}
	if r.After < 0 {
		err = errors.Join(err, fmt.Errorf("after: %d is not a dead letter's id; give the one that the page before says", r.After))
	}
	return err
}

// Page is a part of a list.
type Page struct {
	DeadLetters []DeadLetter `json:"deadLetters"`
	// Next is the After of the next page. 0 means that this page is the last.
	Next int64 `json:"next,omitempty"`
}

// Groups are the groups of open dead letters.
type Groups struct {
	Groups []Group `json:"groups"`
	// More is true when there are more than MaxGroups, of which that many were read.
	More bool `json:"more,omitempty"`
}

// Group is the dead letters with one cause.
type Group struct {
	// Group is the fingerprint of topic, reason, class, code and place.
	Group  string                `json:"group"`
	Topic  string                `json:"topic"`
	Reason dispatcher.DeadReason `json:"reason"`
	dispatcher.Cause
	// Count is how many dead letters are open; with AtLeast there are more, and with Estimated it is about right.
	Count     int64 `json:"count"`
	AtLeast   bool  `json:"atLeast,omitempty"`
	Estimated bool  `json:"estimated,omitempty"`
	// Since and Last are when the first and the last of these events became dead.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// DeadLetter, Event and Error are those of the last dead letter.
	DeadLetter int64  `json:"deadLetter"`
	Event      string `json:"event"`
	Error      string `json:"error,omitempty"`
	// Advice is what to do ([dispatcher.Recovery]).
	Advice string `json:"advice"`
}

// Number is the count as people read it: 60000, 10000+ where there are more, ~60000 where it is an estimate.
func (g Group) Number() string {
	switch {
	case g.Estimated:
		return fmt.Sprintf("~%d", g.Count)
	case g.AtLeast:
		return fmt.Sprintf("%d+", g.Count)
	}
	return fmt.Sprint(g.Count)
}

// By is what dead letters are counted by.
type By string

// What a [Source] counts by.
const (
	ByTenant    By = "tenant"
	ByType      By = "type"
	ByAggregate By = "aggregate"
)

// Groupings are all values of By.
var Groupings = []By{ByTenant, ByType, ByAggregate}

// Validate fails for an unknown value.
func (b By) Validate() error {
	if !slices.Contains(Groupings, b) {
		return fmt.Errorf("by: %s is unknown; choose one of %s", clip(string(b)), strings.Join(names(Groupings), ", "))
	}
	return nil
}

// Counts are the open dead letters by tenant, type or aggregate.
type Counts struct {
	By     By      `json:"by"`
	Counts []Count `json:"counts"`
	// More is true when there are more than MaxGroups, of which that many were read.
	More bool `json:"more,omitempty"`
}

// Count is how many dead letters have a value.
type Count struct {
	// Value is the tenant, the type, or the aggregate as TYPE/ID. Empty: the events have none.
	Value string `json:"value"`
	// Count is how many dead letters are open; with AtLeast there may be more ([CountCap]). Groups is in how many groups they are.
	Count   int64 `json:"count"`
	AtLeast bool  `json:"atLeast,omitempty"`
	Groups  int64 `json:"groups"`
	// Since and Last are when the first and the last of these events became dead.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

// Number is the count as people read it: 60000, or 3000+ where there may be more.
func (c Count) Number() string { return Group{Count: c.Count, AtLeast: c.AtLeast}.Number() }

// DeadLetter is the record that an event became dead (CONTRACT C-41).
type DeadLetter struct {
	ID    int64  `json:"id"`
	Event string `json:"event"`
	Group string `json:"group"`
	Topic string `json:"topic"`
	// Seq is the event's order of insertion.
	Seq           int64                 `json:"seq,omitempty"`
	Type          string                `json:"type,omitempty"`
	AggregateType string                `json:"aggregateType,omitempty"`
	AggregateID   string                `json:"aggregateID,omitempty"`
	Tenant        string                `json:"tenant,omitempty"`
	Reason        dispatcher.DeadReason `json:"reason"`
	dispatcher.Cause
	Error      string      `json:"error,omitempty"`
	Attempts   int         `json:"attempts"`
	DeadAt     time.Time   `json:"deadAt"`
	Resolution *Resolution `json:"resolution,omitempty"`

	// Show and Event return what follows; List does not.

	// Worker is the process that made the last attempt.
	Worker string `json:"worker,omitempty"`
	// Failures are the last failed attempts, the oldest first.
	Failures []Failure `json:"failures,omitempty"`
	// Response is what the destination returned, with captureResponse.
	Response string `json:"response,omitempty"`
	// Status of the event now, empty when its row is gone.
	Status string `json:"status,omitempty"`
	// Advice is what to do ([dispatcher.Recovery]).
	Advice string `json:"advice,omitempty"`
	Content
}

// Content is what an event says. It is returned on request only.
type Content struct {
	Headers json.RawMessage `json:"headers,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// PayloadOmitted says why a requested payload is missing.
	PayloadOmitted string `json:"payloadOmitted,omitempty"`
}

// Failure is a failed attempt.
type Failure struct {
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
	dispatcher.Cause
	Error string `json:"error,omitempty"`
}

// Resolution says how a dead letter was resolved.
type Resolution struct {
	// What is replayed, discarded or expired.
	What string    `json:"what"`
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	// Reason is why, in the words of who did it.
	Reason string `json:"reason,omitempty"`
	// Replay is the id of the replay that did it, and Outcome what became of the event in it: requeued, failing, delivered,
	// dead_again or gone.
	Replay  string `json:"replay,omitempty"`
	Outcome string `json:"outcome,omitempty"`
}

// Event is a row of outbox_events.
type Event struct {
	ID    string `json:"id"`
	Topic string `json:"topic"`
	Seq   int64  `json:"seq"`
	// AggregateSequence is the event's number in its aggregate, 0 for none.
	AggregateSequence int64     `json:"aggregateSequence,omitempty"`
	Type              string    `json:"type,omitempty"`
	AggregateType     string    `json:"aggregateType,omitempty"`
	AggregateID       string    `json:"aggregateID,omitempty"`
	PartitionKey      string    `json:"partitionKey,omitempty"`
	DedupeKey         string    `json:"dedupeKey,omitempty"`
	Tenant            string    `json:"tenant,omitempty"`
	SizeBytes         int64     `json:"sizeBytes"`
	CreatedAt         time.Time `json:"createdAt"`
	UpdatedAt         time.Time `json:"updatedAt"`
	// Status is pending, processing, delivered, dead, withdrawn or expired.
	Status string `json:"status"`
	// Attempts is the part of the retry budget that is used up, Lease the fencing token of the last claim.
	Attempts int   `json:"attempts"`
	Lease    int64 `json:"lease"`
	// NextAttemptAt is when a pending row may be claimed.
	NextAttemptAt time.Time `json:"nextAttemptAt,omitzero"`
	// Worker holds a processing row, until LeasedUntil.
	Worker      string    `json:"worker,omitempty"`
	LeasedUntil time.Time `json:"leasedUntil,omitzero"`
	// Reason is why a dead row is dead.
	Reason    dispatcher.DeadReason `json:"reason,omitempty"`
	LastError string                `json:"lastError,omitempty"`
	// Failures are the last failed attempts, the oldest first.
	Failures []Failure `json:"failures,omitempty"`
	Content
}

// History is everything that is known of an event.
type History struct {
	// Event is nil when the row is gone, as delivered ones are after their retention.
	Event *Event `json:"event"`
	// DeadLetters of the event, the newest first.
	DeadLetters []DeadLetter `json:"deadLetters"`
	// Journal are its records in the journal, the oldest first. There are none when the journal is off, or their retention is over.
	Journal []Record `json:"journal,omitempty"`
	// Original is the event of which this is a copy, nil for what is not one. Copies are the copies of this event, in the topics that
	// dispatchers of its namespace copy to or deliver (CONTRACT C-19).
	Original *Related  `json:"original,omitempty"`
	Copies   []Related `json:"copies,omitempty"`
}

// Related is an event's original, or a copy of it.
type Related struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	// Status is empty when the row is gone.
	Status string `json:"status,omitempty"`
}

// Record is a change of an event's row, as the journal has it (CONTRACT C-61).
type Record struct {
	At time.Time `json:"at"`
	// LSN is the position of the database's WAL, Transaction the id of the transaction.
	LSN         string `json:"lsn"`
	Transaction string `json:"transaction"`
	// Operation is insert, claim, ack, nack, dead, release, extend, replay or delete; resolve or reopen, of a dead letter; edit
	// or change for what no engine does.
	Operation string `json:"operation"`
	// Before and After are the status; empty when there was, or is, no row.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Attempts and Lease are those after the change.
	Attempts int   `json:"attempts"`
	Lease    int64 `json:"lease"`
	// Worker holds the row, or held it. Login is the session's user. Reason is why it is
	// dead; of resolve and reopen the resolution, and of edit the columns.
	Worker string `json:"worker,omitempty"`
	Login  string `json:"login"`
	Reason string `json:"reason,omitempty"`
	// Topic is the event's.
	Topic string `json:"topic"`
}
