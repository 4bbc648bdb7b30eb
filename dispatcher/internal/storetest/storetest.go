// Package storetest says what a [dispatcher.Store] must do, as tests: every store runs [Exercise]
// against a real database.
package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Outbox is an empty outbox and the means to fill it and to look into it. Its methods fail the test
// when they cannot do their work.
type Outbox interface {
	// Store returns a store for a worker and a namespace.
	Store(namespace string, worker uuid.UUID) dispatcher.Store
	// Enqueue commits events, all in one transaction. Delay is from the database's now.
	Enqueue(events ...Event)
	// Row reads a row: the zero Row when there is none.
	Row(id uuid.UUID) Row
	// Failures reads the last failed attempts of a row, oldest first.
	Failures(id uuid.UUID) []Attempt
	// DeadLetters reads the dead letters of a row, oldest first.
	DeadLetters(id uuid.UUID) []DeadLetter
	// Revive puts a dead row back to pending with the attempts, as a replay does, and leaves its
	// dead letters as they are.
	Revive(id uuid.UUID, attempts int)
	// Suspect sets a processing row's suspicion to the limit, so that a claim makes it dead once its lease has expired.
	Suspect(id uuid.UUID)
	// Resolve marks the open dead letters of a row as handled.
	Resolve(id uuid.UUID)
	// Due makes a pending row due now.
	Due(id uuid.UUID)
	// Now is the database's time.
	Now() time.Time
}

// Event is what a producer enqueues.
type Event struct {
	dispatcher.Event
	// RawHeaders are stored instead of Headers, if set, and Retry as the row's retry settings.
	RawHeaders, Retry string
	Delay             time.Duration
}

// Row is what a store changes of a row.
type Row struct {
	Status        string
	Attempts      int
	Lease         int64
	NextAttemptAt time.Time
	LockedBy      uuid.NullUUID
	LockedUntil   time.Time // zero for none
	LastError     string
	DeadReason    string
	UpdatedAt     time.Time
}

// DeadLetter is a dead letter.
type DeadLetter struct {
	Namespace, Topic   string
	Reason             string
	Class, Code, Place string
	Fingerprint        string
	Attempts           int
	Worker             uuid.UUID
	Error              string
	Failures           []Attempt
	Response           string
	DeadAt             time.Time
	Resolved           bool
}

// Cause is the cause that the dead letter records.
func (l DeadLetter) Cause() dispatcher.Cause {
	return dispatcher.Cause{Class: l.Class, Code: l.Code, Place: l.Place}
}

// Attempt is one of the last failed attempts of a row.
type Attempt struct {
	dispatcher.Cause
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
	Error   string    `json:"error"`
}

// Exercise tests a store that keeps delivered rows. It calls open for each sub-test, with its own t;
// the sub-tests run in parallel.
func Exercise(t *testing.T, open func(t *testing.T) Outbox) { exercise(t, open, false) }

// ExerciseDelete tests a store whose Ack removes the rows (CONTRACT C-60). All else is the same.
func ExerciseDelete(t *testing.T, open func(t *testing.T) Outbox) { exercise(t, open, true) }

func exercise(t *testing.T, open func(t *testing.T) Outbox, deletes bool) {
	for _, test := range []struct {
		name string
		run  func(rig)
	}{
		{"Claim/Event", claimEvent},
		{"Claim/Lease", claimLease},
		{"Claim/Order", claimOrder},
		{"Claim/NotDue", claimNotDue},
		{"Claim/Namespace", claimNamespace},
		{"Claim/Exclusive", claimExclusive},
		{"Claim/Expired", claimExpired},
		{"Claim/Suspects", claimSuspects},
		{"Claim/Backlog", claimBacklog},
		{"Claim/Bytes", claimBytes},
		{"Claim/TooLarge", claimTooLarge},
		{"Claim/Exhausted", claimExhausted},
		{"Claim/ExhaustedFront", claimExhaustedFront},
		{"Claim/ExhaustedLarge", claimExhaustedLarge},
		{"Claim/Nothing", claimNothing},
		{"Ack", ack},
		{"Ack/Expired", ackExpired},
		{"Ack/DedupeKey", ackDedupeKey},
		{"Nack/Retry", nackRetry},
		{"Nack/Dead", nackDead},
		{"Nack/DeadTwice", nackDeadTwice},
		{"Nack/Failures", nackFailures},
		{"Nack/Record", nackRecord},
		{"Nack/Text", nackText},
		{"Extend", extend},
		{"Release", release},
		{"Release/Delayed", releaseDelayed},
		{"Release/Fault", releaseFault},
		{"Claim/Unreadable", claimUnreadable},
		{"Claim/OwnLimit", claimOwnLimit},
		{"Claim/Late", claimLate},
		{"Fencing/LostLease", lostLease},
		{"Fencing/OwnOldLease", ownOldLease},
		{"Fencing/Final", final},
		{"Fencing/Token", token},
		{"Order/Heads", orderHeads},
		{"Order/Waits", orderWaits},
		{"Order/Retry", orderRetry},
		{"Order/Gap", orderGap},
		{"Order/Expired", orderExpired},
		{"Order/Key", orderKey},
		{"Order/Bytes", orderBytes},
		{"Order/Dead", orderDead},
		{"Order/BeforeDead", orderBeforeDead},
		{"Order/Blocked", orderBlocked},
		{"Order/Drain", orderDrain},
		{"Topics", topics},
		{"Depth", depth},
		{"Depth/Empty", depthEmpty},
		{"Depth/Groups", depthGroups},
		{"Schema", schema},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, open(t))
			r.deletes = deletes
			test.run(r)
		})
	}
}

const (
	namespace   = "shop"
	topic       = "orders"
	maxAttempts = 3
	lease       = time.Minute
	// gone is a lease that is over when the claim returns.
	gone = -time.Microsecond
	// waitTimeout is how long a patient claim retries while it finds nothing.
	waitTimeout = time.Minute
)

// rig is an outbox and two workers on it.
type rig struct {
	*testing.T
	Outbox
	worker       uuid.UUID
	store, other dispatcher.Store
	deletes      bool // Ack removes rows
}

func newRig(t *testing.T, outbox Outbox) rig {
	worker := uuid.New()
	return rig{T: t, Outbox: outbox, worker: worker, store: outbox.Store(namespace, worker), other: outbox.Store(namespace, uuid.New())}
}

// enqueue adds n events to a topic, due now and in the order of their ids.
func (r rig) enqueue(topic string, n int) []uuid.UUID {
	r.Helper()
	events := make([]Event, n)
	ids := make([]uuid.UUID, n)
	for i := range events {
		events[i] = event(topic)
		ids[i] = events[i].ID
	}
	r.Enqueue(events...)
	return ids
}

// event is a small event with a new id, higher than those before it.
func event(topic string) Event {
	return Event{Event: dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Namespace: namespace, Topic: topic, Payload: json.RawMessage(`{"n": 1}`),
	}}
}

// claim claims up to limit rows of the rig's topic with a store.
func (r rig) claim(store dispatcher.Store, limit int, lease time.Duration) []*dispatcher.Event {
	r.Helper()
	claimed := r.request(store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: limit}}, Lease: lease, MaxAttempts: maxAttempts,
	})
	if len(claimed.Dead) > 0 {
		r.Fatalf("claim dead %v", claimed.Dead)
	}
	return claimed.Events
}

func (r rig) request(store dispatcher.Store, req dispatcher.ClaimRequest) dispatcher.Claimed {
	r.Helper()
	claimed, err := store.Claim(r.Context(), req)
	if err != nil {
		r.Fatalf("Claim: %v", err)
	}
	return claimed
}

// patient claims until rows come or become dead. It is for rows that became due late: they came back, or what they waited
// for is done. A claim that takes long may miss those: see [dispatcher.Store].
type patient struct{ dispatcher.Store }

func (p patient) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	for began := time.Now(); ; {
		claimed, err := p.Store.Claim(ctx, req)
		if err != nil || claimed.Leased()+len(claimed.Dead)+len(claimed.Expired) > 0 || time.Since(began) > waitTimeout {
			return claimed, err
		}
	}
}

// one enqueues an event and claims it with the rig's own store.
func (r rig) one(lease time.Duration) *dispatcher.Event {
	r.Helper()
	id := r.enqueue(topic, 1)[0]
	events := r.claim(r.store, 1, lease)
	r.wantIDs("claimed", events, id)
	return events[0]
}

// wantIDs checks which events came, and in which order.
func (r rig) wantIDs(what string, events []*dispatcher.Event, want ...uuid.UUID) {
	r.Helper()
	got := make([]uuid.UUID, len(events))
	for i, e := range events {
		got[i] = e.ID
	}
	if !slices.Equal(got, want) {
		r.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// wantLost runs a write-back and checks which leases it reported lost.
func (r rig) wantLost(what string, lost []dispatcher.Lease, err error, want ...dispatcher.Lease) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
	order := func(a, b dispatcher.Lease) int {
		return cmp.Or(cmp.Compare(a.ID.String(), b.ID.String()), cmp.Compare(a.Number, b.Number))
	}
	slices.SortFunc(lost, order)
	slices.SortFunc(want, order)
	if !slices.Equal(lost, want) {
		r.Fatalf("%s: lost %v, want %v", what, lost, want)
	}
}

// wantFree checks that no worker holds the row, and its status and attempts.
func (r rig) wantFree(id uuid.UUID, status string, attempts int) Row {
	r.Helper()
	row := r.Row(id)
	if row.Status != status || row.Attempts != attempts || row.LockedBy.Valid || !row.LockedUntil.IsZero() {
		r.Fatalf("row is %+v, want %s without a lease after %d attempts", row, status, attempts)
	}
	return row
}

// wantDelivered checks that the row was acked between two times.
func (r rig) wantDelivered(id uuid.UUID, attempts int, from, to time.Time) {
	r.Helper()
	if r.deletes {
		if row := r.Row(id); row != (Row{}) {
			r.Fatalf("the delivered row is still there: %+v", row)
		}
		return
	}
	row := r.wantFree(id, "delivered", attempts)
	r.wantBetween("updated_at", row.UpdatedAt, from, to)
}

// wantBetween checks a time that the database set while the test did something.
func (r rig) wantBetween(what string, at, from, to time.Time) {
	r.Helper()
	if at.Before(from) || at.After(to) {
		r.Errorf("%s is %v, want between %v and %v", what, at, from, to)
	}
}

// returns gives leases back, due as before.
func returns(leases ...dispatcher.Lease) []dispatcher.Return {
	all := make([]dispatcher.Return, len(leases))
	for i, l := range leases {
		all[i] = dispatcher.Return{Lease: l}
	}
	return all
}

func leases(events []*dispatcher.Event) []dispatcher.Lease {
	leases := make([]dispatcher.Lease, len(events))
	for i, e := range events {
		leases[i] = e.Lease()
	}
	return leases
}
