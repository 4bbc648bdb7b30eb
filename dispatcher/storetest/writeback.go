package storetest

import (
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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

// CONTRACT: C-24
func nackRetry(r rig) {
	r.enqueue(topic, 2)
	events := r.claim(r.store, 2, lease)
	from := r.Now()
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{
		{Lease: events[1].Lease(), Error: "at once"},
		{Lease: events[0].Lease(), Error: "in an hour", Delay: time.Hour},
	})
	r.wantLost("nack", lost, err)
	for i, want := range []struct {
		text  string
		delay time.Duration
	}{{"in an hour", time.Hour}, {"at once", 0}} {
		row := r.wantFree(events[i].ID, "pending", 1)
		if row.LastError != want.text || row.DeadReason != "" {
			r.Errorf("row is %+v, want last_error %q and no dead_reason", row, want.text)
		}
		r.wantBetween("next_attempt_at", row.NextAttemptAt, from.Add(want.delay), r.Now().Add(want.delay))
		r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
		if n := len(r.Letters(events[i].ID)); n != 0 {
			r.Errorf("a retry has %d dead letters", n)
		}
	}
	again := r.claim(r.other, 10, lease)
	r.wantIDs("claimed after the nack", again, events[1].ID)
	if again[0].Attempt != 2 {
		r.Errorf("attempt is %d, want 2", again[0].Attempt)
	}
	lost, err = r.store.Nack(r.Context(), nil)
	r.wantLost("nack of nothing", lost, err)
}

// A release gives the attempt back, whatever was sent. With a delay the row waits. One statement takes both.
// CONTRACT: C-27, C-32
func releaseDelayed(r rig) {
	r.enqueue(topic, 3)
	old := r.claim(r.store, 3, gone)[0].Lease()
	events := r.claim(patient{r.store}, 3, gone)
	from := r.Now()
	lost, err := r.store.Release(r.Context(), []dispatcher.Return{
		{Lease: events[0].Lease(), Error: "nobody there", Delay: time.Hour},
		{Lease: events[1].Lease()},
		{Lease: events[2].Lease(), Error: "nobody there", Delay: time.Hour},
		{Lease: old, Error: "nobody there"},
	})
	r.wantLost("release", lost, err, old)
	row := r.wantFree(events[0].ID, "pending", 1)
	if row.LastError != "nobody there" || row.DeadReason != "" || len(r.Letters(events[0].ID)) != 0 {
		r.Errorf("row is %+v, want last_error, and no death", row)
	}
	r.wantBetween("next_attempt_at", row.NextAttemptAt, from.Add(time.Hour), r.Now().Add(time.Hour))
	r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
	again := r.claim(r.other, 10, lease)
	r.wantIDs("claimed after the release", again, events[1].ID)
	if again[0].Attempt != 2 || again[0].LeaseNumber <= events[1].LeaseNumber {
		r.Errorf("attempt is %d under lease %d, want the second again under a higher lease than %d",
			again[0].Attempt, again[0].LeaseNumber, events[1].LeaseNumber)
	}
}

// One statement takes deaths of every reason, and retries beside them.
// CONTRACT: C-24, C-26, C-40, C-41
func nackDead(r rig) {
	reasons := []dispatcher.DeadReason{
		dispatcher.ReasonMaxRetriesExceeded, dispatcher.ReasonPoisonMessage, dispatcher.ReasonSchemaValidationFailed,
		dispatcher.ReasonProcessingTimeout, dispatcher.ReasonPermanentFailure, "",
	}
	r.enqueue(topic, len(reasons))
	events := r.claim(r.store, len(reasons), lease)
	failures := make([]dispatcher.Failure, len(reasons))
	for i, reason := range reasons {
		failures[i] = dispatcher.Failure{Lease: events[i].Lease(), Error: "failed", Delay: time.Hour, Reason: reason}
	}
	lost, err := r.store.Nack(r.Context(), failures)
	r.wantLost("nack", lost, err)
	retried := events[5].ID
	r.wantFree(retried, "pending", 1)
	for i, reason := range reasons[:5] {
		row := r.wantFree(events[i].ID, "dead", 1)
		if row.DeadReason != string(reason) || row.LastError != "failed" {
			r.Errorf("row is %+v, want dead of %s with the error", row, reason)
		}
		l := r.wantLetter(events[i].ID, reason, 1)
		if l.Error != "failed" || l.Worker != r.worker {
			r.Errorf("the record is %+v, want the error and the worker", l)
		}
	}
	r.wantIDs("claimed after death", r.claim(r.store, 10, lease))
}

// A row keeps its last five failed attempts. What is given back is none of them.
// CONTRACT: C-41
func nackFailures(r rig) {
	e := r.one(lease)
	if got := r.Failures(e.ID); len(got) > 0 {
		r.Errorf("a row that never failed has the failures %+v", got)
	}
	claim := func(n int) dispatcher.Lease {
		claimed := r.request(patient{r.store}, dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: topic, Limit: 1}}, Lease: lease, MaxAttempts: 100})
		r.wantIDs("claimed", claimed.Events, e.ID)
		if claimed.Events[0].Attempt != n {
			r.Fatalf("attempt %d, want %d", claimed.Events[0].Attempt, n)
		}
		return claimed.Events[0].Lease()
	}
	from, held := r.Now(), e.Lease()
	for n := 1; n <= 7; n++ {
		lost, err := r.store.Release(r.Context(), []dispatcher.Return{{Lease: held, Error: "nobody there"}})
		r.wantLost("release", lost, err)
		f := dispatcher.Failure{Lease: claim(n), Error: strings.Repeat("ä", 1000)}
		f.Cause = dispatcher.Cause{Class: "http", Code: strconv.Itoa(500 + n), Place: "/items/*/price"}
		lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{f})
		r.wantLost("nack", lost, err)
		r.Due(e.ID)
		if n < 7 {
			held = claim(n + 1)
		}
	}
	got := r.Failures(e.ID)
	if len(got) != 5 {
		r.Fatalf("%d failures are kept, want 5: %+v", len(got), got)
	}
	for i, f := range got {
		r.wantBetween("at", f.At, from, r.Now())
		from = f.At
		want := Attempt{At: f.At, Attempt: i + 3, Error: strings.Repeat("ä", 150), Cause: dispatcher.Cause{
			Class: "http", Code: strconv.Itoa(503 + i), Place: "/items/*/price"}}
		if f != want {
			r.Errorf("failure %d is %+v, want %+v", i, f, want)
		}
	}
}

// A death's record says what failed where, the failures before, and what the destination answered, and has the
// fingerprint of its group.
// CONTRACT: C-41
func nackRecord(r rig) {
	for name, cause := range map[string]dispatcher.Cause{
		"all":        {Class: "rule", Code: "total-is-sum", Place: "/items/*/price"},
		"none":       {},
		"class":      {Class: "http", Code: "422"},
		"backslash":  {Class: "rule", Code: `\x41`, Place: `/a\b\\`},
		"characters": {Class: "rule", Code: "größer", Place: "/größe/😀"},
		"odd":        {Class: "a\x00b", Code: "\xff", Place: `"`},
	} {
		e := r.one(lease)
		from := r.Now()
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Error: "first", Response: "not of a death"}})
		r.wantLost("nack", lost, err)
		r.Due(e.ID)
		again := r.claim(patient{r.store}, 1, lease)
		r.wantIDs("claimed", again, e.ID)
		lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{
			Lease: again[0].Lease(), Error: "refused", Reason: dispatcher.ReasonPermanentFailure, Cause: cause,
			Response: strings.Repeat("\x00ä\xff", 1000),
		}})
		r.wantLost("nack", lost, err)
		l := r.wantLetter(e.ID, dispatcher.ReasonPermanentFailure, 2)
		want := cause
		if name == "odd" {
			want = dispatcher.Cause{Class: "ab", Code: "\uFFFD", Place: `"`}
		}
		if l.Cause() != want || l.Fingerprint != dispatcher.Fingerprint(topic, dispatcher.ReasonPermanentFailure, want) {
			r.Errorf("%s: the record has the cause %+v and the fingerprint %s, want %+v and that of Go", name, l.Cause(), l.Fingerprint, want)
		}
		if len(l.Failures) != 2 || l.Failures[0].Error != "first" || l.Failures[1].Error != "refused" || l.Failures[1].Cause != want || l.Failures[1].Attempt != 2 {
			r.Errorf("%s: the record has the failures %+v, want both", name, l.Failures)
		}
		for _, f := range l.Failures {
			r.wantBetween("at", f.At, from, r.Now())
		}
		if !utf8.ValidString(l.Response) || len(l.Response) < 1020 || len(l.Response) > 1024 || !strings.HasPrefix(l.Response, "ä\uFFFDä") {
			r.Errorf("%s: the answer is kept as %d bytes %.20q, want the first 1024 as text", name, len(l.Response), l.Response)
		}
	}
}

// CONTRACT: C-27, C-41, C-42
func nackDeadTwice(r rig) {
	e := r.one(lease)
	for range 2 {
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{
			{Lease: e.Lease(), Error: "no", Reason: dispatcher.ReasonPoisonMessage},
		})
		r.wantLost("nack", lost, err)
		r.Revive(e.ID, 0)
		again := r.claim(patient{r.store}, 1, lease)
		r.wantIDs("claimed after the replay", again, e.ID)
		if again[0].Attempt != 1 || again[0].LeaseNumber <= e.LeaseNumber {
			r.Errorf("a replay begins with attempt %d under lease %d, want 1 under a higher one than %d",
				again[0].Attempt, again[0].LeaseNumber, e.LeaseNumber)
		}
		e = again[0]
	}
	if n := len(r.Letters(e.ID)); n != 2 {
		r.Errorf("a row that died twice has %d dead letters, want 2", n)
	}
}

// What PostgreSQL cannot store is replaced, and a long text is cut between two characters.
// CONTRACT: C-24
func nackText(r rig) {
	texts := map[string]string{
		"":                                      "",
		"a\x00b\xffc":                           "ab\uFFFDc",
		strings.Repeat("x", 2000):               strings.Repeat("x", 2000),
		strings.Repeat("x", 1999) + "ä":         strings.Repeat("x", 1999),
		strings.Repeat("\xff ", 5000):           strings.Repeat("\uFFFD ", 500),
		strings.Repeat("x", 1_000_000) + "\x00": strings.Repeat("x", 2000),
	}
	for text, want := range texts {
		e := r.one(lease)
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Error: text, Reason: dispatcher.ReasonPermanentFailure}})
		r.wantLost("nack", lost, err)
		if got := r.Row(e.ID).LastError; got != want || !utf8.ValidString(got) {
			r.Errorf("%.10q... is stored as %d bytes %.10q..., want %d bytes %.10q...", text, len(got), got, len(want), want)
		}
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
	row := r.wantFree(second[1].ID, "pending", 1)
	if !row.NextAttemptAt.Equal(before.NextAttemptAt) {
		r.Errorf("next_attempt_at moved from %v to %v", before.NextAttemptAt, row.NextAttemptAt)
	}
	r.wantBetween("updated_at", row.UpdatedAt, from, r.Now())
	again := r.claim(r.other, 10, lease)
	r.wantIDs("claimed after the release", again, second[1].ID)
	if again[0].Attempt != 2 {
		r.Errorf("attempt is %d, want 2: the released one again", again[0].Attempt)
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

// The worker is not the whole guard: its own older lease is refused, beside the newer one too.
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

// Nothing leaves delivered or dead, and a row that nobody holds is nobody's to write.
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
	before, letters := r.Row(l.ID), len(r.Letters(l.ID))
	one := []dispatcher.Lease{l}
	lost, err := r.store.Ack(r.Context(), one)
	r.wantLost("ack", lost, err, l)
	lost, err = r.store.Extend(r.Context(), one, time.Hour)
	r.wantLost("extend", lost, err, l)
	lost, err = r.store.Release(r.Context(), returns(l))
	r.wantLost("release", lost, err, l)
	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l, Error: "late", Delay: time.Second}})
	r.wantLost("nack", lost, err, l)
	lost, err = r.store.Release(r.Context(), []dispatcher.Return{{Lease: l, Error: "late", Delay: time.Second}})
	r.wantLost("release with a delay", lost, err, l)
	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: l, Error: "late", Reason: dispatcher.ReasonPoisonMessage}})
	r.wantLost("nack to death", lost, err, l)
	if after := r.Row(l.ID); !reflect.DeepEqual(after, before) || len(r.Letters(l.ID)) != letters {
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
