package consumercheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
)

// check is one thing that is tried.
type check struct {
	name, rule string
	// needs is the hook without which it is left out.
	needs Hook
	// effects is true when the responses alone show nothing of it.
	effects bool
	// follows are the checks that explain it when they are broken too: who handles a duplicate twice does so after a
	// restart as well.
	follows []string
	remedy  string
	run     func(*run)
}

// checks are all of them, in the order in which they are made.
var checks = []check{
	{name: "handles an event", rule: "RULE-010-002", run: handles,
		remedy: "Acknowledge an event when its effect is committed, and see that the effects of its id are counted."},
	{name: "duplicates", rule: "RULE-010-002", run: duplicates,
		remedy: "Keep the id of each event that was handled, skip one that is there, and acknowledge it."},
	{name: "duplicates at the same time", rule: "RULE-010-012", follows: []string{"duplicates", "replays"}, run: simultaneous,
		remedy: "Let the record's unique key decide, in the effect's transaction."},
	{name: "replays", rule: "RULE-010-002", follows: []string{"duplicates"}, run: replays,
		remedy: "Dedupe on the event id alone, without token and attempt."},
	{name: "older tokens", rule: "RULE-010-002", effects: true, follows: []string{"duplicates", "replays"}, run: olderTokens,
		remedy: "Dedupe on the event id alone, without token and attempt."},
	{name: "another order", rule: "RULE-010-020", run: anotherOrder,
		remedy: "Accept any order; where one is needed, compare the sequence with that of the last event applied to the aggregate, and skip older ones."},
	{name: "unknown fields", rule: "RULE-010-021", run: unknownFields,
		remedy: "Ignore fields and attributes that you do not know."},
	{name: "missing fields", rule: "RULE-010-021", needs: Optional, run: missingFields,
		remedy: "Use a default for an optional field that is missing."},
	{name: "duplicates after a restart", rule: "RULE-010-002", needs: Restart, follows: []string{"duplicates", "replays"}, run: restarts,
		remedy: "Keep what was handled in a database."},
	{name: "failures are reported", rule: "RULE-010-032", needs: FailEffect, run: failuresAreReported,
		remedy: "Return the error of the effect, so that the event comes again."},
	{name: "failures are made good", rule: "RULE-010-012", needs: FailEffect, run: failuresAreMadeGood,
		remedy: "Write record and effect in one transaction."},
	{name: "effect before the check", rule: "RULE-010-031", needs: FailRecord, effects: true, follows: []string{"failures are reported"}, run: effectBeforeCheck,
		remedy: "Check before the effect, and fail when the check does."},
	{name: "crash between effect and record", rule: "RULE-010-012", needs: Crash, follows: []string{"duplicates", "replays", "duplicates after a restart"}, run: crash,
		remedy: "Write record and effect in one transaction."},
}

func handles(r *run) {
	e := r.event()
	if r.acknowledged("an event", e) {
		r.effects("an event that was delivered once and acknowledged", e, 1)
	}
}

func duplicates(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	r.acknowledged("the same delivery again", e)
	r.effects("the same delivery twice", e, 1)
}

// simultaneous delivers until each was acknowledged, as a dispatcher does.
func simultaneous(r *run) {
	e := r.event()
	var all sync.WaitGroup
	start, errs := make(chan struct{}), make([]error, 8)
	for i := range errs {
		all.Go(func() {
			<-start
			errs[i] = r.persist(e, e.FencingToken+int64(i), i+1)
		})
	}
	close(start)
	all.Wait()
	for i, err := range errs {
		if err != nil {
			r.found("delivery %d of 8 at the same time is refused for %s: %v", i+1, r.c.CheckTimeout, err)
			return
		}
	}
	r.effects("8 deliveries at the same time", e, 1)
}

func replays(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	for attempt := 1; attempt <= 2; attempt++ { // a replay begins with attempt 1 and a higher token
		r.acknowledged("a replay", again(e, e.FencingToken+int64(10*attempt), attempt))
	}
	r.effects("an event and two replays", e, 1)
}

func olderTokens(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	// Whether an older delivery is acknowledged or refused makes no difference: the dispatcher has given it up.
	_ = r.deliver(again(e, e.FencingToken-50, 1))
	r.effects("a delivery with a lower fencing token after the event was handled", e, 1)
}

func anotherOrder(r *run) {
	const events = 5
	all := make([]*consumer.Event, events)
	for i := range all {
		all[i] = r.event()
		all[i].CreatedAt = time.Now().Add(time.Duration(i-events) * time.Second)
	}
	for i := events; i > 0; i-- {
		e := all[i-1]
		r.id = e.ID
		what := fmt.Sprintf("event %d of one aggregate, which comes after event %d", i, i+1)
		if i == events {
			what = fmt.Sprintf("event %d of one aggregate, which comes first", i)
		}
		if r.acknowledged(what, e) {
			r.effects(what, e, 1)
		}
	}
}

func unknownFields(r *run) {
	e := r.event()
	r.change(e, func(fields map[string]json.RawMessage) {
		fields["added_by_a_later_version"] = json.RawMessage(`{"of": ["any", "shape", 9007199254740993]}`)
	})
	e.Headers = map[string]string{"addedbyalaterversion": "x"}
	if r.acknowledged("an event with an unknown field", e) {
		r.effects("an event with an unknown field", e, 1)
	}
}

func missingFields(r *run) {
	for _, field := range r.c.Optional {
		e := r.event()
		r.change(e, func(fields map[string]json.RawMessage) { delete(fields, field) })
		what := fmt.Sprintf("an event without the optional field %q", field)
		if r.acknowledged(what, e) {
			r.effects(what, e, 1)
		}
	}
}

func restarts(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	r.must(Restart, r.c.Restart(r.ctx))
	if r.recovers("the same event after a restart", e) {
		r.effects("the same event before and after a restart", e, 1)
	}
}

func failuresAreReported(r *run) {
	e := r.event()
	r.must(FailEffect, r.c.FailEffect(r.ctx, true))
	err := r.deliver(e)
	r.must(FailEffect, r.c.FailEffect(r.ctx, false))
	if err != nil {
		return
	}
	if r.c.Effects != nil {
		n, err := r.c.Effects(r.ctx, e.ID)
		r.must(Effects, err)
		if n > 0 {
			r.must(FailEffect, errors.New("it made no effect fail: the event took effect; correct the hook"))
		}
	}
	r.found("an event whose effect failed is acknowledged")
}

func failuresAreMadeGood(r *run) {
	e := r.event()
	r.must(FailEffect, r.c.FailEffect(r.ctx, true))
	failed := r.deliver(e)
	r.must(FailEffect, r.c.FailEffect(r.ctx, false))
	if failed == nil {
		return // it will not come again: "failures are reported" has found that
	}
	if r.acknowledged("the event after its effect failed once", again(e, e.FencingToken+1, 2)) {
		r.effects("an event that failed and came again", e, 1)
	}
}

func effectBeforeCheck(r *run) {
	e := r.event()
	r.must(FailRecord, r.c.FailRecord(r.ctx, true))
	err := r.deliver(e)
	r.must(FailRecord, r.c.FailRecord(r.ctx, false))
	if err == nil {
		r.found("an event is acknowledged while its record cannot be read")
	}
	r.effects("an event while its record cannot be read", e, 0)
}

func crash(r *run) {
	e := r.event()
	r.must(Crash, r.c.Crash(r.ctx, e))
	if r.recovers("the event after a crash between effect and record", e) {
		r.effects("an event that came again after a crash between effect and record", e, 1)
	}
}

// change makes another payload of the event.
func (r *run) change(e *consumer.Event, change func(map[string]json.RawMessage)) {
	var fields map[string]json.RawMessage
	err := e.Decode(&fields)
	if err == nil && fields == nil {
		err = errors.New("its payload is not a JSON object")
	}
	r.must(event, err)
	change(fields)
	e.Payload, err = json.Marshal(fields)
	r.must(event, err)
}
