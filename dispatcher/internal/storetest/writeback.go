package storetest

import (
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// CONTRACT: C-23, C-26, C-60
func ack(r rig) {
	r.enqueue(topic, 3)
	events := r.claim(r.store, 3, lease)
	from := r.Now()
	lost, err := r.store.Ack(r.Context(), leases(events[:2]))
	r.wantLost("ack", lost, err)
	for _, e := range events[:2] {
		r.wantDelivered(e.ID, 1, from, r.Now())
	}
	if row := r.Row(events[2].ID); row.Status != "processing" {
		r.Errorf("ack changed a row that it was not given: %+v", row)
	}
	lost, err = r.store.Ack(r.Context(), leases(events))
	r.wantLost("second ack", lost, err, leases(events[:2])...)
	lost, err = r.store.Ack(r.Context(), nil)
	r.wantLost("ack of nothing", lost, err)
	r.wantIDs("claimed after delivery", r.claim(r.store, 10, gone))
}

// A lease that expired is still held until another claim takes it.
// CONTRACT: C-23
func ackExpired(r rig) {
	e := r.one(gone)
	from := r.Now()
	lost, err := r.store.Ack(r.Context(), []dispatcher.Lease{e.Lease()})
	r.wantLost("ack", lost, err)
	r.wantDelivered(e.ID, 1, from, r.Now())
}

// A store that removes delivered rows forgets their dedupe keys: the same key makes a new event.
// CONTRACT: C-60
func ackDedupeKey(r rig) {
	if !r.deletes {
		r.Skip("delivered rows are kept, and with them their dedupe keys")
	}
	first := event(topic)
	first.DedupeKey = "once"
	r.Enqueue(first)
	lost, err := r.store.Ack(r.Context(), leases(r.claim(r.store, 1, lease)))
	r.wantLost("ack", lost, err)
	second := event(topic)
	second.DedupeKey = "once"
	r.Enqueue(second)
	r.wantIDs("claimed with the same key", r.claim(r.store, 10, lease), second.ID)
}

// The first release with an error is remembered, through other releases and failures. The last error stays until there is another one.
// CONTRACT: C-32
func releaseFault(r rig) {
	r.enqueue(topic, 1)
	claim := func() *dispatcher.Event { return r.claim(patient{r.store}, 1, lease)[0] }
	release := func(e *dispatcher.Event, why, want string) {
		lost, err := r.store.Release(r.Context(), []dispatcher.Return{{Lease: e.Lease(), Error: why}})
		r.wantLost("release", lost, err)
		if last := r.Row(e.ID).LastError; last != want {
			r.Errorf("last_error is %q after a release with %q, want %q", last, why, want)
		}
	}
	e := claim()
	release(e, "", "")
	if e = claim(); !e.FaultSince.IsZero() {
		r.Errorf("FaultSince is %v after a release without an error", e.FaultSince)
	}
	from := r.Now()
	release(e, "503", "503")
	e = claim()
	first := e.FaultSince
	r.wantBetween("FaultSince", first, from, r.Now())
	release(e, "502", "502")
	e = claim()
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Error: "400"}})
	r.wantLost("nack", lost, err)
	r.Due(e.ID)
	if e = claim(); !e.FaultSince.Equal(first) {
		r.Errorf("FaultSince is %v later, want that of the first fault, %v", e.FaultSince, first)
	}
	release(e, "", "400")
}

// A release gives the attempt back, whatever was sent. With a delay the row waits. One statement takes both.
// CONTRACT: C-27, C-32
func releaseDelayed(r rig) {
	r.enqueue(topic, 3)
	old := r.claim(r.store, 3, gone)[0].Lease()
	events := r.claim(patient{r.store}, 3, gone)
	from := r.Now()
	lost, err := r.store.Release(r.Context(), []dispatcher.Return{
		{Lease: events[0].Lease(), Error: "unreachable", Delay: time.Hour},
		{Lease: events[1].Lease()},
		{Lease: events[2].Lease(), Error: "unreachable", Delay: time.Hour},
		{Lease: old, Error: "unreachable"},
	})
	r.wantLost("release", lost, err, old)
	row := r.wantFree(events[0].ID, "pending", 0)
	if row.LastError != "unreachable" || row.DeadReason != "" || len(r.DeadLetters(events[0].ID)) != 0 {
		r.Errorf("row is %+v, want last_error, and no dead letter", row)
	}
	r.wantBetween("next_attempt_at", row.NextAttemptAt, from.Add(time.Hour), r.Now().Add(time.Hour))
	r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
	again := r.claim(r.other, 10, lease)
	r.wantIDs("claimed after the release", again, events[1].ID)
	if again[0].Attempt != 1 || again[0].LeaseNumber <= events[1].LeaseNumber {
		r.Errorf("attempt is %d under lease %d, want the first again under a higher lease than %d",
			again[0].Attempt, again[0].LeaseNumber, events[1].LeaseNumber)
	}
}

// CONTRACT: C-31, C-23
func extend(r rig) {
	r.enqueue(topic, 2)
	events := r.claim(r.store, 2, gone)
	r.wantIDs("claimed by another worker", r.claim(r.other, 1, lease), events[0].ID)
	from := r.Now()
	lost, err := r.store.Extend(r.Context(), leases(events), time.Hour)
	r.wantLost("extend", lost, err, events[0].Lease())
	row := r.Row(events[1].ID)
	if row.Status != "processing" || row.Attempts != 1 || row.LockedBy.UUID != r.worker || row.LockedUntil.IsZero() {
		r.Fatalf("row is %+v, want it still held", row)
	}
	r.wantBetween("locked_until", row.LockedUntil, from.Add(time.Hour), r.Now().Add(time.Hour))
	r.wantIDs("claimed after the extension", r.claim(r.other, 10, lease))
}

// CONTRACT: C-30, C-32, C-23
func release(r rig) {
	r.enqueue(topic, 2)
	first := r.claim(r.store, 10, gone)
	second := r.claim(patient{r.store}, 10, gone)
	before := r.Row(second[0].ID)
	r.wantIDs("claimed by another worker", r.claim(r.other, 1, lease), second[0].ID)
	from := r.Now()
	lost, err := r.store.Release(r.Context(), returns(append(leases(first), leases(second)...)...))
	r.wantLost("release", lost, err, first[0].Lease(), first[1].Lease(), second[0].Lease())
	row := r.wantFree(second[1].ID, "pending", 0)
	if !row.NextAttemptAt.Equal(before.NextAttemptAt) {
		r.Errorf("next_attempt_at moved from %v to %v", before.NextAttemptAt, row.NextAttemptAt)
	}
	r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
	again := r.claim(r.other, 10, lease)
	r.wantIDs("claimed after the release", again, second[1].ID)
	if again[0].Attempt != 1 || again[0].Suspicion != 0 {
		r.Errorf("attempt is %d, and suspicion %d; want 1, the released one again, and none", again[0].Attempt, again[0].Suspicion)
	}
}

// A worker whose lease another one took changes nothing, by any verb.
// CONTRACT: C-23
func lostLease(r rig) {
	e := r.one(gone)
	other := r.claim(r.other, 1, lease)
	r.wantIDs("claimed by another worker", other, e.ID)
	r.wantRefused(e.Lease())
	r.wantRefused(other[0].Lease())
	lost, err := r.other.Ack(r.Context(), leases(other))
	r.wantLost("the holder's ack", lost, err)
}

// The worker is not the whole guard: its own older lease is refused, with the newer one too.
// CONTRACT: C-23
func ownOldLease(r rig) {
	e := r.one(gone)
	old := e.Lease()
	again := r.claim(patient{r.store}, 1, lease)
	r.wantIDs("claimed again", again, e.ID)
	r.wantRefused(old)
	lost, err := r.store.Ack(r.Context(), []dispatcher.Lease{old, again[0].Lease()})
	r.wantLost("ack of both", lost, err, old)
}

// Nothing leaves delivered or dead, and a row without a lease is not written.
// CONTRACT: C-23, C-26
func final(r rig) {
	delivered, dead, retried, released := r.one(lease), r.one(lease), r.one(lease), r.one(lease)
	postponed := r.one(lease)
	lost, err := r.store.Ack(r.Context(), []dispatcher.Lease{delivered.Lease()})
	r.wantLost("ack", lost, err)
	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{
		{Lease: dead.Lease(), Reason: dispatcher.ReasonPoisonMessage}, {Lease: retried.Lease(), Delay: time.Hour},
	})
	r.wantLost("nack", lost, err)
	lost, err = r.store.Release(r.Context(), []dispatcher.Return{{Lease: released.Lease()}, {Lease: postponed.Lease(), Delay: time.Hour}})
	r.wantLost("release", lost, err)
	for _, e := range []*dispatcher.Event{delivered, dead, retried, released, postponed} {
		r.wantRefused(e.Lease())
	}
	r.wantRefused(dispatcher.Lease{ID: uuid.New(), Number: 1})
}

// wantRefused tries every write-back of the rig's worker with a lease that it does not hold.
func (r rig) wantRefused(l dispatcher.Lease) {
	r.Helper()
	before, deadLetters := r.Row(l.ID), len(r.DeadLetters(l.ID))
	one := []dispatcher.Lease{l}
	lost, err := r.store.Ack(r.Context(), one)
	r.wantLost("ack", lost, err, l)
	lost, err = r.store.Extend(r.Context(), one, time.Hour)
	r.wantLost("extend", lost, err, l)
	lost, err = r.store.Begin(r.Context(), one)
	r.wantLost("begin", lost, err, l)
	lost, err = r.store.Release(r.Context(), returns(l))
	r.wantLost("release", lost, err, l)
	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l, Error: "late", Delay: time.Second}})
	r.wantLost("nack", lost, err, l)
	lost, err = r.store.Release(r.Context(), []dispatcher.Return{{Lease: l, Error: "late", Delay: time.Second}})
	r.wantLost("release with a delay", lost, err, l)
	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l, Error: "late", Reason: dispatcher.ReasonPermanentFailure}})
	r.wantLost("nack to dead", lost, err, l)
	if after := r.Row(l.ID); !reflect.DeepEqual(after, before) || len(r.DeadLetters(l.ID)) != deadLetters {
		r.Errorf("a write-back without the lease changed the row from %+v to %+v", before, after)
	}
}

// The lease number is the fencing token: each claim publishes a higher one, whatever happened to the one
// before.
// CONTRACT: C-27
func token(r rig) {
	e := r.one(gone)
	last := e.LeaseNumber
	for _, end := range []func(dispatcher.Lease) ([]dispatcher.Lease, error){
		func(dispatcher.Lease) ([]dispatcher.Lease, error) { return nil, nil }, // expires
		func(l dispatcher.Lease) ([]dispatcher.Lease, error) {
			return r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l}})
		},
		func(l dispatcher.Lease) ([]dispatcher.Lease, error) {
			return r.store.Release(r.Context(), returns(l))
		},
		func(l dispatcher.Lease) ([]dispatcher.Lease, error) {
			lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l, Reason: dispatcher.ReasonPermanentFailure}})
			r.Revive(l.ID, 0)
			return lost, err
		},
		func(l dispatcher.Lease) ([]dispatcher.Lease, error) {
			return r.store.Extend(r.Context(), []dispatcher.Lease{l}, gone)
		},
	} {
		lost, err := end(dispatcher.Lease{ID: e.ID, Number: last})
		r.wantLost("end of the attempt", lost, err)
		claimed := r.request(patient{r.store}, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 1}}, Lease: gone, MaxAttempts: 100,
		})
		r.wantIDs("claimed", claimed.Events, e.ID)
		if got := claimed.Events[0].LeaseNumber; got <= last {
			r.Errorf("token %d came after %d", got, last)
		}
		last = claimed.Events[0].LeaseNumber
	}
}
