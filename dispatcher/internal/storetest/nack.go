package storetest

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

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
		if n := len(r.DeadLetters(events[i].ID)); n != 0 {
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

// One statement takes dead rows of every reason, and retries too.
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
		l := r.wantDeadLetter(events[i].ID, reason, 1)
		if l.Error != "failed" || l.Worker != r.worker {
			r.Errorf("the record is %+v, want the error and the worker", l)
		}
	}
	r.wantIDs("claimed after it became dead", r.claim(r.store, 10, lease))
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
		lost, err := r.store.Release(r.Context(), []dispatcher.Return{{Lease: held, Error: "unreachable"}})
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

// A dead letter says what failed where, the failures before, and what the destination responded, and has the
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
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Error: "first", Response: "not of a dead letter"}})
		r.wantLost("nack", lost, err)
		r.Due(e.ID)
		again := r.claim(patient{r.store}, 1, lease)
		r.wantIDs("claimed", again, e.ID)
		lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{
			Lease: again[0].Lease(), Error: "refused", Reason: dispatcher.ReasonPermanentFailure, Cause: cause,
			Response: strings.Repeat("\x00ä\xff", 1000),
		}})
		r.wantLost("nack", lost, err)
		l := r.wantDeadLetter(e.ID, dispatcher.ReasonPermanentFailure, 2)
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
			r.Errorf("%s: the response is kept as %d bytes %.20q, want the first 1024 as text", name, len(l.Response), l.Response)
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
	if n := len(r.DeadLetters(e.ID)); n != 2 {
		r.Errorf("a row that became dead twice has %d dead letters, want 2", n)
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
	for range 4 {
		lost, err := r.store.Begin(r.Context(), leases(events))
		r.wantLost("begin", lost, err)
	}
	lost, err := r.store.Outlive(r.Context(), leases(events))
	r.wantLost("outlive", lost, err)
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
