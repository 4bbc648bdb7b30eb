package storetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// An event comes as it was enqueued.
func claimEvent(r rig) {
	full := Event{Event: dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Namespace: namespace, Topic: topic,
		TenantID:     uuid.NullUUID{UUID: uuid.New(), Valid: true},
		PartitionKey: "p", EventType: "OrderPlaced", AggregateType: "order", AggregateID: "42",
		AggregateSequence: 9007199254740993,
		Payload:           json.RawMessage(`{"n": 12345678901234567890.123, "text": "Füße 🦶"}`),
	}, RawHeaders: `{"correlation_id": "c-\u00e4", "schema_version": 2, "sampled": true, "none": null, "nested": {"a": [1]}}`}
	full.DedupeKey = full.TenantID.UUID.String() + "/1"
	r.Enqueue(full, event(topic))

	events := r.claim(r.store, 2, lease)
	if len(events) != 2 {
		r.Fatalf("claimed %d events, want 2", len(events))
	}
	got := *events[0]
	want := full.Event
	want.Attempt = 1
	want.Seq, want.CreatedAt, want.LeaseNumber = got.Seq, got.CreatedAt, got.LeaseNumber
	want.Headers = map[string]string{
		"correlation_id": "c-ä", "schema_version": "2", "sampled": "true", "nested": `{"a": [1]}`,
	}
	if !equalEvents(got, want) {
		r.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.LeaseNumber < 1 || events[1].LeaseNumber != got.LeaseNumber {
		r.Errorf("LeaseNumber is %d and %d, want one number for the claim", got.LeaseNumber, events[1].LeaseNumber)
	}
	if got.Seq < 1 || events[1].Seq <= got.Seq {
		r.Errorf("Seq is %d and then %d, want it to rise", got.Seq, events[1].Seq)
	}
	r.wantBetween("CreatedAt", got.CreatedAt, r.Now().Add(-time.Hour), r.Now())

	bare := *events[1]
	if bare.Headers == nil || len(bare.Headers) > 0 || bare.TenantID.Valid || bare.DedupeKey != "" || bare.PartitionKey != "" ||
		bare.EventType != "" || bare.AggregateType != "" || bare.AggregateID != "" || bare.AggregateSequence != 0 {
		r.Errorf("a bare event came as %+v", bare)
	}
}

func equalEvents(a, b dispatcher.Event) bool {
	if !maps.Equal(a.Headers, b.Headers) || string(a.Payload) != string(b.Payload) || !a.CreatedAt.Equal(b.CreatedAt) {
		return false
	}
	return a.ID == b.ID && a.Seq == b.Seq && a.Namespace == b.Namespace && a.Topic == b.Topic && a.TenantID == b.TenantID &&
		a.DedupeKey == b.DedupeKey && a.PartitionKey == b.PartitionKey && a.EventType == b.EventType &&
		a.AggregateType == b.AggregateType && a.AggregateID == b.AggregateID && a.AggregateSequence == b.AggregateSequence && a.Attempt == b.Attempt
}

// CONTRACT: C-20, C-21
func claimLease(r rig) {
	id := r.enqueue(topic, 1)[0]
	before := r.Row(id)
	from := r.Now()
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: maxAttempts,
	})
	r.wantIDs("claimed", claimed.Events, id)
	r.wantBetween("Claimed.At", claimed.At, from, r.Now())
	row := r.Row(id)
	if row.Status != "processing" || row.Attempts != 1 || row.LockedBy.UUID != r.worker || row.LockedUntil.IsZero() {
		r.Fatalf("row is %+v, want processing, 1 attempt, held by %s", row, r.worker)
	}
	r.wantBetween("locked_until", row.LockedUntil, from.Add(lease), r.Now().Add(lease))
	r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
	if !row.NextAttemptAt.Equal(before.NextAttemptAt) {
		r.Errorf("next_attempt_at moved from %v to %v", before.NextAttemptAt, row.NextAttemptAt)
	}
}

// Topics come in the order of the request, each with its own limit, its rows in order of
// (next_attempt_at, id).
// CONTRACT: C-21
func claimOrder(r rig) {
	late, early := event("b"), event("b")
	late.Delay, early.Delay = -time.Second, -time.Minute
	b := r.enqueue("b", 3)
	a := r.enqueue("a", 5)
	r.Enqueue(late, early)
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "b", Limit: 4}, {Topic: "none", Limit: 9}, {Topic: "a", Limit: 2}},
		Lease:  lease, MaxAttempts: maxAttempts,
	})
	r.wantIDs("claimed", claimed.Events, early.ID, late.ID, b[0], b[1], a[0], a[1])
}

func claimNotDue(r rig) {
	later := event(topic)
	later.Delay = time.Hour
	r.Enqueue(later)
	r.wantIDs("claimed", r.claim(r.store, 10, lease))
	r.wantFree(later.ID, "pending", 0)
}

func claimNamespace(r rig) {
	foreign := event(topic)
	foreign.Namespace = "bank"
	r.Enqueue(foreign)
	r.wantIDs("claimed in the wrong namespace", r.claim(r.store, 10, lease))
	r.wantIDs("claimed in its own", r.claim(r.Store("bank", r.worker), 10, lease), foreign.ID)
}

// A leased row is claimed by no worker, not even its own worker's once more.
// CONTRACT: C-20
func claimExclusive(r rig) {
	ids := r.enqueue(topic, 4)
	r.wantIDs("first claim", r.claim(r.store, 2, lease), ids[:2]...)
	r.wantIDs("another worker's", r.claim(r.other, 1, lease), ids[2])
	r.wantIDs("own second", r.claim(r.store, 10, lease), ids[3])
	r.wantIDs("with nothing left", r.claim(r.other, 10, lease))
	short := r.enqueue(topic, 1)
	r.wantIDs("with a short lease", r.claim(r.store, 10, 2*time.Second), short...)
	r.wantIDs("before that lease is over", r.claim(r.other, 10, lease))
}

// CONTRACT: C-20, C-21
func claimExpired(r rig) {
	e := r.one(gone)
	again := r.claim(r.other, 1, lease)
	r.wantIDs("claimed after expiry", again, e.ID)
	if again[0].Attempt != 1 || again[0].Suspicion != 1 || again[0].LeaseNumber <= e.LeaseNumber {
		r.Errorf("it came as attempt %d, suspicion %d, lease %d after %d; want attempt 1, suspicion 1 and a higher lease",
			again[0].Attempt, again[0].Suspicion, again[0].LeaseNumber, e.LeaseNumber)
	}
}

// Full batches come one after the other, and rows that become due before the last batch are found at
// the end of the backlog at the latest: a claim without rows means that nothing is due. One that took long
// may have ended, in order per key, before it had looked at all.
func claimBacklog(r rig) {
	first := r.enqueue(topic, 6)
	r.wantIDs("first batch", r.claim(r.store, 3, gone), first[:3]...)
	early := event(topic)
	early.Delay = -time.Hour
	r.Enqueue(early)
	var rest []*dispatcher.Event
	for range 20 {
		began := time.Now()
		events := r.claim(r.store, 3, lease)
		rest = append(rest, events...)
		if len(events) == 0 && time.Since(began) < 50*time.Millisecond {
			break
		}
	}
	seen := map[uuid.UUID]int{}
	for _, e := range rest {
		seen[e.ID]++
	}
	for _, id := range append(first, early.ID) {
		if seen[id] != 1 {
			r.Errorf("row %s came %d times after the first batch, want once", id, seen[id])
		}
	}
	if len(seen) != 7 {
		r.Errorf("%d rows came, want 7", len(seen))
	}
}

// sized makes events that are due for an hour, with payloads of about the given bytes. They compress well: what
// they take in memory is what counts.
func sized(sizes ...int) (events []Event, ids []uuid.UUID) {
	for _, size := range sizes {
		e := event(topic)
		e.Delay = -time.Hour
		e.Payload = json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
		events, ids = append(events, e), append(ids, e.ID)
	}
	return events, ids
}

// Bytes bound a claim, and never keep its first row back, unless it must fit. Then what is behind it waits too.
func claimBytes(r rig) {
	events, ids := sized(1000, 1000, 1000, 10_000, 1000, 1000)
	r.Enqueue(events...)
	ids = append(ids, r.enqueue(topic, 1)...) // what is due later does not overtake
	for i, want := range [][]uuid.UUID{ids[:2], ids[2:3], ids[3:4], ids[4:]} {
		claimed := r.request(r.store, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: maxAttempts, MaxBytes: 2100,
		})
		r.wantIDs("claim "+string(rune('1'+i)), claimed.Events, want...)
	}
	large, last := sized(3000, 1000)
	for i := range large {
		large[i].Topic = "large" // claims of the other have passed what was due an hour ago
	}
	r.Enqueue(large...)
	for _, c := range []struct {
		fit  bool
		want []uuid.UUID
	}{{true, nil}, {false, last[:1]}, {true, last[1:]}} {
		claimed := r.request(r.store, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "large", Limit: 10}}, Lease: lease, MaxAttempts: maxAttempts, MaxBytes: 2100, Fit: c.fit,
		})
		r.wantIDs(fmt.Sprintf("a claim with fit %v", c.fit), claimed.Events, c.want...)
	}
}

// Rows without an attempt left become dead on the way, each with its dead letter.
// CONTRACT: C-22, C-40, C-41
func claimExhausted(r rig) {
	r.enqueue(topic, 2)
	events := r.claim(r.store, 10, gone)
	r.Suspect(events[0].ID)
	crashed, retried := events[0].ID, events[1].ID
	refused := dispatcher.Cause{Class: "http", Code: "500", Place: "/total"}
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: events[1].Lease(), Error: "no", Cause: refused}})
	r.wantLost("nack", lost, err)
	fresh := r.enqueue(topic, 1)[0]

	from := r.Now()
	claimed := r.request(r.other, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 3}}, Lease: lease, MaxAttempts: 1,
	})
	r.wantIDs("claimed with the dead", claimed.Events, fresh)
	want := map[uuid.UUID]dispatcher.DeadEvent{
		crashed: {ID: crashed, Topic: topic, Attempts: 1, Reason: dispatcher.ReasonProcessingTimeout, Cause: dispatcher.Cause{Class: dispatcher.ClassLease}},
		retried: {ID: retried, Topic: topic, Attempts: 1, Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: refused},
	}
	if len(claimed.Dead) != len(want) {
		r.Fatalf("dead are %v, want %v", claimed.Dead, want)
	}
	for _, d := range claimed.Dead {
		want := want[d.ID]
		want.Fingerprint = dispatcher.Fingerprint(topic, want.Reason, want.Cause)
		if d != want {
			r.Errorf("the dead event is %+v, want %+v", d, want)
		}
		row := r.wantFree(d.ID, "dead", d.Attempts)
		if row.DeadReason != string(d.Reason) {
			r.Errorf("dead_reason is %q, want %q", row.DeadReason, d.Reason)
		}
		r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
		if l := r.wantDeadLetter(d.ID, d.Reason, d.Attempts); l.Cause() != d.Cause || l.Fingerprint != d.Fingerprint {
			r.Errorf("the record is %+v, want the cause and the fingerprint of %+v", l, d)
		}
	}
	if l := r.DeadLetters(crashed)[0]; l.Worker != r.worker || len(l.Failures) != 0 {
		r.Errorf("the record is %+v, want the worker whose lease expired, %s, and no failures", l, r.worker)
	}
	if l := r.DeadLetters(retried)[0]; l.Error != "no" || l.Worker != uuid.Nil || len(l.Failures) != 1 || l.Failures[0].Cause != refused {
		r.Errorf("the record is %+v, want the last error and its failure", l)
	}
}

// Any number of rows without an attempt does not hide those behind them, nor another topic.
// CONTRACT: C-22
func claimExhaustedFront(r rig) {
	r.enqueue(topic, 25)
	events := r.claim(r.store, 25, gone)
	if len(events) != 25 {
		r.Fatalf("claimed %d rows, want 25", len(events))
	}
	for _, e := range events {
		r.Suspect(e.ID)
	}
	fresh := r.enqueue(topic, 1)[0]
	claimed := r.request(r.other, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: 1,
	})
	r.wantIDs("claimed behind the dead", claimed.Events, fresh)
	if len(claimed.Dead) != 25 {
		r.Errorf("%d rows became dead, want 25", len(claimed.Dead))
	}
}

// What becomes dead takes no room from what is claimed, and has its dead letter wherever bytes cut the claim. What
// there is no room for is for the next claim.
// CONTRACT: C-22, C-41
func claimExhaustedLarge(r rig) {
	spent, dead := sized(10_000, 10_000)
	spent[0].Delay, spent[1].Delay = -2*time.Hour, 0 // behind the first of the others, and behind all
	r.Enqueue(spent...)
	old := r.claim(r.store, 2, gone)
	if len(old) != 2 {
		r.Fatalf("claimed %d rows, want 2", len(old))
	}
	r.Suspect(old[0].ID)
	r.Suspect(old[1].ID)
	events, ids := sized(1000, 1000, 1000, 1000)
	events[0].Delay = -3 * time.Hour
	r.Enqueue(events...)
	for i, want := range [][]uuid.UUID{ids[:2], ids[2:]} {
		claimed := r.request(r.other, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: 1, MaxBytes: 2100,
		})
		r.wantIDs("claim "+string(rune('1'+i)), claimed.Events, want...)
		if n := len(claimed.Dead); n != 2 && i == 0 || n != 0 && i > 0 {
			r.Errorf("%d rows became dead in claim %d, want both in the first", n, i+1)
		}
	}
	for _, id := range dead {
		r.wantFree(id, "dead", 1)
		if n := len(r.DeadLetters(id)); n != 1 {
			r.Errorf("%d dead letters of one event, want 1", n)
		}
	}
}

func claimNothing(r rig) {
	for _, shares := range [][]dispatcher.Share{nil, {{Topic: topic, Limit: 5}}, {{Topic: topic, Limit: 0}}} {
		claimed := r.request(r.store, dispatcher.ClaimRequest{Shares: shares, Lease: lease, MaxAttempts: maxAttempts})
		if len(claimed.Events)+len(claimed.Dead) > 0 {
			r.Errorf("claimed %v of an empty outbox", claimed)
		}
	}
}

// wantDeadLetter checks the newest dead letter of a row.
func (r rig) wantDeadLetter(id uuid.UUID, reason dispatcher.DeadReason, attempts int) DeadLetter {
	r.Helper()
	all := r.DeadLetters(id)
	if len(all) == 0 {
		r.Fatalf("row %s has no dead letter", id)
	}
	l := all[len(all)-1]
	if l.Namespace != namespace || l.Topic != topic || l.Reason != string(reason) || l.Attempts != attempts || l.Resolved {
		r.Errorf("dead letter is %+v, want an open one for %s after %d attempts", l, reason, attempts)
	}
	r.wantBetween("dead_at", l.DeadAt, r.Now().Add(-time.Hour), r.Now())
	return l
}

// A row that cannot be decoded harms itself alone: it comes leased and named, and the others of its claim are delivered.
// CONTRACT: C-16, C-33
func claimUnreadable(r rig) {
	deep := event(topic)
	deep.RawHeaders = `{"deep": ` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`
	wrong := event(topic)
	wrong.Retry = `{"base": "soon"}`
	before, after := event(topic), event(topic)
	r.Enqueue(before, deep, wrong, after)
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 4}}, Lease: lease, MaxAttempts: maxAttempts,
	})
	if claimed.Leased() != 4 || len(claimed.Unreadable) != 2 {
		r.Fatalf("claimed %d rows, %d of them unreadable, want 4 and 2", claimed.Leased(), len(claimed.Unreadable))
	}
	for i, e := range []Event{deep, wrong} {
		u := claimed.Unreadable[i]
		if u.Event.ID != e.ID || u.Event.Topic != topic || u.Err == nil {
			r.Errorf("unreadable is %v, %v, want event %s", u.Event.ID, u.Err, e.ID)
		}
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: u.Event.Lease(), Reason: dispatcher.ReasonPoisonMessage}})
		r.wantLost("nack", lost, err)
		r.wantFree(e.ID, "dead", 1)
	}
	lost, err := r.store.Ack(r.Context(), leases(claimed.Events))
	r.wantLost("ack of the others", lost, err)
}

// A row's own retry settings come before the dispatcher's.
// CONTRACT: C-20, C-22
func claimOwnLimit(r rig) {
	short, long, policy, linear := event(topic), event(topic), event(topic), event(topic)
	short.MaxAttempts, long.MaxAttempts = 1, maxAttempts+2
	policy.Retry = `{"strategy": "Linear", "base": "7s", "max": "1m"}`
	linear.Retry = `{"strategy": "Linear"}`
	r.Enqueue(short, long, policy, linear)
	came := map[uuid.UUID]int{}
	for dead := 0; dead < 4; {
		claimed := r.request(patient{r.store}, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: maxAttempts,
		})
		dead += len(claimed.Dead)
		for _, e := range claimed.Events {
			own := map[uuid.UUID]int{short.ID: 1, long.ID: maxAttempts + 2, policy.ID: 0, linear.ID: 0}[e.ID]
			came[e.ID]++
			lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease()}})
			r.wantLost("nack", lost, err)
			if e.MaxAttempts != own || e.Attempt != came[e.ID] || e.Attempt > cmp.Or(own, maxAttempts) {
				r.Errorf("attempt %d of %d came after %d, want one of %d", e.Attempt, e.MaxAttempts, came[e.ID]-1, own)
			}
			if e.ID == policy.ID && (e.Backoff == nil || e.Backoff.Delay(1, nil) < 7*time.Second) {
				r.Errorf("the policy is %v, want linear", e.Backoff)
			}
			if e.ID == linear.ID && (e.Backoff == nil || e.Backoff.Delay(1, nil) < time.Minute) {
				r.Errorf("the policy without a base is %v, want linear from a minute", e.Backoff)
			}
		}
	}
	for id, attempts := range map[uuid.UUID]int{short.ID: 1, long.ID: maxAttempts + 2, policy.ID: maxAttempts, linear.ID: maxAttempts} {
		r.wantFree(id, "dead", attempts)
	}
}
