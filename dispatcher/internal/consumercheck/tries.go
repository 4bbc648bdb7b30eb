package consumercheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
)

// unknown is a type that no consumer knows.
const unknown = "outbox.verify.unknown-type"

func respondsInTime(r *run) {
	e := r.event()
	err := r.deliver(e)
	var slow late
	switch {
	case errors.As(err, &slow):
		r.found("an event: %v", slow)
	case err != nil:
		r.usable(err) // a refusal is the next check's
	default:
		r.keep(e)
	}
}

// handles delivers a few plain events. Each is counted at once, so that an effect that comes after the acknowledgement is seen.
func handles(r *run) {
	for i, what := range []string{"an event that was delivered once", "another event of the same aggregate, type and payload", "a third one", "a fourth one"} {
		e := r.event()
		e.FencingToken -= int64(i) // a token says something of its own event alone
		remedy := wholeID
		if i == 0 {
			remedy = acknowledgeLater
		}
		if !r.acknowledged(what, e) || !r.took(what, e, remedy) {
			if r.remedy == acknowledgeLater && !r.early && len(*r.kept) > 0 { // an event of the same aggregate and type was before
				if n, err := r.count((*r.kept)[0]); err == nil && n > 0 {
					r.remedy = wholeID
				}
			}
			return
		}
		r.keep(e)
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
	if r.together(e, e, e, e, e, e, e, e) {
		r.effects("8 deliveries at the same time", e, 1)
	}
	r.keep(e)
}

func several(r *run) {
	r.together(r.event(), r.event(), r.event(), r.event(), r.event(), r.event(), r.event(), r.event())
}

// together makes deliveries at the same time, and reports whether all are acknowledged in the end. The event of each must have
// its effect from then on.
func (r *run) together(events ...*consumer.Event) bool {
	var all sync.WaitGroup
	start, errs, counts, uncounted := make(chan struct{}), make([]error, len(events)), make([]int, len(events)), make([]error, len(events))
	for i, e := range events {
		all.Go(func() {
			<-start
			if errs[i] = r.persist(e, e.FencingToken+int64(i), i+1); errs[i] == nil && r.c.Effects != nil {
				counts[i], uncounted[i] = r.count(e)
			}
		})
	}
	close(start)
	all.Wait()
	for i, err := range errs {
		r.id = events[i].ID
		what := fmt.Sprintf("delivery %d of %d at the same time", i+1, len(events))
		if r.refused(what, err); err != nil {
			return false
		}
		if r.must(Effects, uncounted[i]); r.c.Effects == nil {
			r.uncounted = true
		} else if counts[i] == 0 {
			if r.comes(events[i]) {
				r.found("early: %s is acknowledged before its event has its effect", what)
			} else {
				r.found("lost: %s is acknowledged, and its event has no effect", what)
			}
			return false
		}
	}
	return true
}

// givenUp ends deliveries before their response, as a dispatcher whose timeout is over does, and delivers again.
func givenUp(r *run) {
	for _, wait := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond} {
		e := r.event()
		short, cancel := context.WithTimeout(r.ctx, wait)
		_ = r.send(short, e)
		cancel()
		if !r.recovers("an event whose first delivery was given up before its response", e) {
			return
		}
		r.effects("an event whose first delivery was given up before its response", e, 1)
		r.keep(e)
	}
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
	const events = 3
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
		if r.acknowledged(what, e) && (i == events || !r.c.LatestOnly) {
			r.effects(what, e, 1)
		}
	}
}

func unknownFields(r *run) {
	e := r.event()
	r.change(e, func(fields map[string]json.RawMessage) {
		fields["added_by_a_later_version"] = json.RawMessage(`{"of": ["any", "shape", 9007199254740993]}`)
	})
	e.Headers = maps.Clone(e.Headers)
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers["addedbyalaterversion"] = "x"
	if r.acknowledged("an event with an unknown field", e) {
		r.effects("an event with an unknown field", e, 1)
	}
}

func missingFields(r *run) {
	for _, field := range r.c.Optional {
		e := r.event()
		r.change(e, func(fields map[string]json.RawMessage) {
			if _, there := fields[field]; !there {
				r.must(Optional, fmt.Errorf("the payload of Event has no field %q, so it cannot be left out; correct Optional", field))
			}
			delete(fields, field)
		})
		what := fmt.Sprintf("an event without the optional field %q", field)
		if r.acknowledged(what, e) {
			r.effects(what, e, 1)
		}
	}
}

// unknownType delivers an event that no consumer can know. It is lost when it is acknowledged, whatever was made of it.
func unknownType(r *run) {
	e := r.event()
	e.EventType = unknown
	err := r.deliver(e)
	if err == nil {
		r.found("an event of the type %s, which the consumer cannot know, is acknowledged", unknown)
	} else {
		r.usable(err)
	}
	r.effects("an event of an unknown type", e, 0)
}

// restarts ends the consumer right after it has acknowledged events, which must have their effects nevertheless.
func restarts(r *run) {
	events := []*consumer.Event{r.event(), r.event(), r.event(), r.event()}
	for _, e := range events {
		if !r.acknowledged("an event", e) {
			return
		}
	}
	r.must(Restart, r.c.Restart(r.ctx))
	last := events[len(events)-1]
	if !r.recovers("the same event after a restart", last) {
		return
	}
	r.effects("the same event before and after a restart", last, 1)
	for _, e := range events[:len(events)-1] {
		r.id = e.ID
		r.effects("an event that was acknowledged before a restart", e, 1)
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
		n, err := r.count(e)
		r.must(Effects, err)
		if n > 0 {
			r.must(FailEffect, errors.New("it made no effect fail: the event took effect; correct the hook"))
		}
	}
	r.found("lost: an event whose effect failed is acknowledged")
}

func failuresAreMadeGood(r *run) {
	e := r.event()
	r.must(FailEffect, r.c.FailEffect(r.ctx, true))
	_ = r.deliver(e)
	r.must(FailEffect, r.c.FailEffect(r.ctx, false))
	if r.recovers("the event after its effect failed once", e) {
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

// fence delivers older tokens after a newer one that was handled, and after one that failed.
func fence(r *run) {
	token := func(e *consumer.Event) int64 {
		n, err := r.c.Token(r.ctx, e.ID)
		r.must(Token, err)
		return n
	}
	e := r.event()
	if !r.acknowledged("an event", again(e, 200, 2)) {
		return
	}
	tries := []*consumer.Event{e}
	if r.c.FailEffect != nil {
		failed := r.event()
		r.must(FailEffect, r.c.FailEffect(r.ctx, true))
		_ = r.deliver(again(failed, 200, 2))
		r.must(FailEffect, r.c.FailEffect(r.ctx, false))
		tries = append(tries, failed)
	}
	for _, e := range tries {
		before := token(e)
		_ = r.deliver(again(e, 100, 1))
		if after := token(e); after < before {
			r.id = e.ID
			r.found("the delivery with the fencing token 100 has replaced what the one with %d had left: the token is %d now", before, after)
		}
	}
}

// lateDuplicates delivers the first events again, and counts those whose deliveries crossed.
func lateDuplicates(r *run) {
	for i, e := range *r.kept {
		if r.id = e.ID; i < 2 {
			r.sleep(remembers - time.Since(*r.began))
			r.acknowledged("one of the first events, at the end", again(e, e.FencingToken+1000, 1))
		}
		r.effects("one of the first events, at the end", e, 1)
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
