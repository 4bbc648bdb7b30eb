package storetest

import (
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A lease that ends without an outcome spends no attempt, however often: the row is claimed again as a suspect, until its
// delivery was begun four times. Then it is dead, also with attempts left, and the others are not. Any outcome clears the
// suspicion.
// CONTRACT: C-20, C-21, C-22, C-33
func claimSuspects(r rig) {
	ids := r.enqueue(topic, 4)
	one := dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: gone, MaxAttempts: 1}
	if e := r.request(r.store, one).Events[0]; e.Suspicion != 0 {
		r.Errorf("a fresh row has the suspicion %d", e.Suspicion)
	}
	for begun := range 5 {
		for range 3 { // not begun
			for _, e := range r.request(patient{r.store}, one).Events {
				want := 1
				if e.ID == ids[0] {
					want += begun
				}
				if e.Attempt != 1 || e.Suspicion != want || e.ID == ids[0] && begun == 4 {
					r.Fatalf("begun %d times: event %s came as attempt %d with suspicion %d, want attempt 1 and %d, and none after 4 times", begun, e.ID, e.Attempt, e.Suspicion, want)
				}
			}
		}
		if begun < 4 {
			lost, err := r.store.Begin(r.Context(), []dispatcher.Lease{{ID: ids[0], Number: r.Row(ids[0]).Lease}})
			r.wantLost("begin", lost, err)
		}
	}
	r.wantFree(ids[0], "dead", 1)
	if l := r.wantDeadLetter(ids[0], dispatcher.ReasonProcessingTimeout, 1); l.Cause().Class != dispatcher.ClassLease {
		r.Errorf("the dead letter has the cause %+v", l.Cause())
	}

	one.Lease = lease
	events := r.request(patient{r.store}, one).Events
	r.wantIDs("the others", events, ids[1:]...)
	lost, err := r.store.Begin(r.Context(), leases(events))
	r.wantLost("begin", lost, err)
	lost, err = r.store.Release(r.Context(), returns(leases(events)...))
	r.wantLost("release", lost, err)
	for _, e := range r.request(r.store, one).Events {
		if e.Suspicion != 0 || e.Attempt != 1 {
			r.Errorf("after a release it has the suspicion %d and came as attempt %d, want 0 and 1", e.Suspicion, e.Attempt)
		}
	}
}

// A row that is larger than the limit is dead as a poison message, with its size and the limit. The others are claimed.
// CONTRACT: C-33, C-35, C-40
func claimTooLarge(r rig) {
	events, ids := sized(1000, 3000, 1000)
	r.Enqueue(events...)
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 10}}, Lease: lease, MaxAttempts: maxAttempts, MaxBytes: 2500, MaxRowBytes: 2500,
	})
	r.wantIDs("without the large one", claimed.Events, ids[0], ids[2])
	cause := dispatcher.Cause{Class: dispatcher.ClassDecode, Code: "size"}
	want := dispatcher.DeadEvent{ID: ids[1], Topic: topic, Reason: dispatcher.ReasonPoisonMessage, Cause: cause,
		Fingerprint: dispatcher.Fingerprint(topic, dispatcher.ReasonPoisonMessage, cause)}
	if len(claimed.Dead) != 1 || claimed.Dead[0] != want {
		r.Errorf("dead are %+v, want %+v", claimed.Dead, want)
	}
	r.wantFree(ids[1], "dead", 0)
	if l := r.wantDeadLetter(ids[1], dispatcher.ReasonPoisonMessage, 0); l.Cause() != cause || !strings.Contains(l.Error, "3002 bytes") || !strings.Contains(l.Error, "2500") {
		r.Errorf("the dead letter is %+v, want its size and the limit", l)
	}
}
