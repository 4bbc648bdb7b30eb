package consumertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
)

// checks are all of them, in the order in which they are made. has says whether the hook is there.
var checks = []struct {
	name, rule, hook string
	has              func(*Consumer) bool
	run              func(*run)
}{
	{"handles an event", "RULE-010-002", "", always, handles},
	{"duplicates", "RULE-010-002", "", always, duplicates},
	{"duplicates at the same time", "RULE-010-012", "", always, simultaneous},
	{"replays", "RULE-010-002", "", always, replays},
	{"older tokens", "RULE-010-002", "", always, olderTokens},
	{"another order", "RULE-010-020", "", always, anotherOrder},
	{"unknown fields", "RULE-010-021", "", always, unknownFields},
	{"missing fields", "RULE-010-021", "Optional", func(c *Consumer) bool { return len(c.Optional) > 0 }, missingFields},
	{"duplicates after a restart", "RULE-010-002", "Restart", func(c *Consumer) bool { return c.Restart != nil }, restarts},
	{"failures are told", "RULE-010-032", "FailEffect", func(c *Consumer) bool { return c.FailEffect != nil }, failuresAreTold},
	{"failures are made good", "RULE-010-012", "FailEffect", func(c *Consumer) bool { return c.FailEffect != nil }, failuresAreMadeGood},
	{"effect before the check", "RULE-010-031", "FailRecord", func(c *Consumer) bool { return c.FailRecord != nil }, effectBeforeCheck},
	{"crash between effect and record", "RULE-010-012", "Crash", func(c *Consumer) bool { return c.Crash != nil }, crash},
}

func always(*Consumer) bool { return true }

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
	r.acknowledged("the same delivery again (skip it, and acknowledge)", e)
	r.effects("the same delivery twice; dedupe on the event id", e, 1)
}

// simultaneous delivers until each was acknowledged, as a dispatcher does.
func simultaneous(r *run) {
	e := r.event()
	var all sync.WaitGroup
	start, errs := make(chan struct{}), make([]error, 8)
	for i := range errs {
		all.Go(func() {
			<-start
			for {
				if errs[i] = r.deliver(again(e, e.FencingToken+int64(i), i+1)); errs[i] == nil {
					return
				}
				select {
				case <-r.ctx.Done():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	close(start)
	all.Wait()
	for i, err := range errs {
		if err != nil {
			r.found("delivery %d of 8 at the same time is refused for %s: %v", i+1, r.c.Patience, err)
			return
		}
	}
	r.effects("8 deliveries at the same time; let the record's unique key decide, in the effect's transaction", e, 1)
}

func replays(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	for attempt := 1; attempt <= 2; attempt++ { // a replay begins with attempt 1 and a higher token
		r.acknowledged("a replay", again(e, e.FencingToken+int64(10*attempt), attempt))
	}
	r.effects("an event and two replays; dedupe on the event id alone, without token and attempt", e, 1)
}

func olderTokens(r *run) {
	e := r.event()
	if !r.acknowledged("an event", e) {
		return
	}
	// Whether an older delivery is acknowledged or refused makes no difference: the dispatcher has given it up.
	_ = r.deliver(again(e, e.FencingToken-50, 1))
	r.effects("a delivery with a lower fencing token after the event was handled; dedupe on the event id alone", e, 1)
}

func anotherOrder(r *run) {
	events := 5
	for i := events; i > 0; i-- {
		e := r.event()
		e.Sequence, e.CreatedAt = int64(1000*i), time.Unix(1_700_000_000+int64(i), 0)
		what := fmt.Sprintf("event %d of one aggregate, which comes after event %d (accept any order)", i, i+1)
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
	if r.acknowledged("an event with an unknown field (ignore it)", e) {
		r.effects("an event with an unknown field", e, 1)
	}
}

func missingFields(r *run) {
	for _, field := range r.c.Optional {
		e := r.event()
		r.change(e, func(fields map[string]json.RawMessage) { delete(fields, field) })
		what := fmt.Sprintf("an event without the optional field %q (use its default)", field)
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
	r.must("Restart", r.c.Restart(r.ctx))
	r.acknowledged("the same event after a restart", again(e, e.FencingToken+1, 2))
	r.effects("the same event before and after a restart; keep what was handled in a database", e, 1)
}

func failuresAreTold(r *run) {
	e := r.event()
	r.must("FailEffect", r.c.FailEffect(r.ctx, true))
	err := r.deliver(e)
	r.must("FailEffect", r.c.FailEffect(r.ctx, false))
	if err == nil {
		r.found("an event whose effect failed is acknowledged; return the error, so that it comes again")
	}
}

func failuresAreMadeGood(r *run) {
	e := r.event()
	r.must("FailEffect", r.c.FailEffect(r.ctx, true))
	failed := r.deliver(e)
	r.must("FailEffect", r.c.FailEffect(r.ctx, false))
	if failed == nil {
		return // it will not come again: "failures are told" has found that
	}
	if r.acknowledged("the event after its effect failed once", again(e, e.FencingToken+1, 2)) {
		r.effects("an event that failed and came again; write record and effect in one transaction", e, 1)
	}
}

func effectBeforeCheck(r *run) {
	e := r.event()
	r.must("FailRecord", r.c.FailRecord(r.ctx, true))
	err := r.deliver(e)
	r.must("FailRecord", r.c.FailRecord(r.ctx, false))
	if err == nil {
		r.found("an event is acknowledged while nobody can know whether it was handled")
	}
	r.effects("an event while nobody can know whether it was handled; check before the effect", e, 0)
}

func crash(r *run) {
	e := r.event()
	r.must("Crash", r.c.Crash(r.ctx, e))
	if r.acknowledged("the event after a crash between effect and record", again(e, e.FencingToken+1, 2)) {
		r.effects("an event that came again after a crash between effect and record; write both in one transaction", e, 1)
	}
}

// change makes another payload of the event.
func (r *run) change(e *consumer.Event, change func(map[string]json.RawMessage)) {
	var fields map[string]json.RawMessage
	err := e.Decode(&fields)
	if err == nil && fields == nil {
		err = errors.New("its payload is no JSON object")
	}
	r.must("Event", err)
	change(fields)
	e.Payload, err = json.Marshal(fields)
	r.must("Event", err)
}
