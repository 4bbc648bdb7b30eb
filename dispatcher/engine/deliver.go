package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// deliverLoop delivers what is queued, one batch after the other, until the flight is closed.
func (r *run) deliverLoop() {
	var d delivery
	returned := true
	defer func() {
		if !returned { // the sink ended this goroutine, with runtime.Goexit
			r.complete(&d, slices.Repeat([]error{errGoexit}, len(d.rows)))
			r.life.workers.Go(r.deliverLoop)
		}
	}()
	for r.flight.take(&d, r.sinkBatch) {
		returned = false
		errs := r.publish(&d)
		returned = true
		r.complete(&d, errs)
	}
}

// complete ends a delivery, and hands what came of it to the completer.
func (r *run) complete(d *delivery, errs []error) {
	c := call{d.topic, d.began, time.Since(d.began), context.Cause(d.ctx)}
	r.completer.release(r.flight.finish(d, errs))
	d.results = r.judge(c, d.rows, d.writable, errs, d.results[:0])
	r.completer.add(d.results)
	clear(d.results) // or its memory would keep the events
	clear(d.rows)
}

// publish calls the sink, and returns a result for each event whatever the sink does.
func (r *run) publish(d *delivery) (errs []error) {
	batch := each(d.rows, func(r *row) *dispatcher.Event { return r.event })
	defer func() {
		if v := recover(); v != nil {
			err := dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassHandler, Code: dispatcher.CodePanic}, newPanicError(v))
			r.log.Debug("the sink panicked", "topic", batch[0].Topic, "error", err, "stack", string(debug.Stack()))
			errs = slices.Repeat([]error{err}, len(batch))
		}
	}()
	if err := r.countSuspects(d.rows); err != nil {
		d.cut(err) // they are released
		return slices.Repeat([]error{dispatcher.Unavailable(err)}, len(batch))
	}
	errs = r.d.sink.Deliver(d.ctx, batch)
	if len(errs) != len(batch) {
		return slices.Repeat([]error{fmt.Errorf("the sink returned %d results for %d events; it must return one for each", len(errs), len(batch))}, len(batch))
	}
	return errs
}

// call is a call of the sink that has ended. cut is why it was cancelled, if it was: then its outcomes are
// not known, and say nothing of the destination.
type call struct {
	topic *topic
	began time.Time
	took  time.Duration
	cut   error
}

// failure is the sink's error, with why the call was cancelled.
func (c call) failure(err error) error {
	if c.cut != nil {
		return fmt.Errorf("%w: %w", c.cut, err)
	}
	return err
}

// judge reports the results of a call's rows to the flight and the observer, and appends what to write back of those
// that are ours.
func (r *run) judge(c call, rows []*row, writable []bool, errs []error, out []result) []result {
	alone := newFault(errs, time.Time{}).alone(len(rows))
	paused, flow := r.flight.called(c, rows, writable, errs)
	r.completer.release(paused)
	for i, row := range rows {
		if !writable[i] {
			continue
		}
		e, err := row.event, errs[i]
		if err == nil {
			r.d.cfg.Observer.Delivered(e, row.sinceCreation(c.began), c.took)
			out = append(out, result{row, outcome{verb: ack}})
			continue
		}
		err = c.failure(err)
		ownFault := alone && flow.delivered(row.before.since(row.claimedAt))
		o := r.weigh(row, err, flow, ownFault, c.cut != nil)
		out = append(out, result{row, o})
		r.d.cfg.Observer.Failed(e, err, c.took, o.failure.Delay)
		r.log.Debug("delivery failed", "event", e.ID, "topic", e.Topic, "attempt", e.Attempt,
			"outcome", o.verb, "retryIn", o.failure.Delay, "error", err)
	}
	return out
}

// flow is when this worker saw the destination confirm an event last: one of the topic, and one of any; zero for never.
type flow struct {
	topic, any time.Time
	paused     bool // the topic, or the destination as a whole
}

// delivered reports that an event of the topic was delivered after a time, and the topic is not paused. Then a failure of one
// event since is its own: another was taken. Once does not prove that for what the load causes, which may refuse any event: so only an
// event that had failed before is left out of what a pacer counts (CONTRACT C-38).
func (f flow) delivered(after time.Time) bool { return !f.paused && f.topic.After(after) }

// delivering reports that an event of the topic was delivered in the last minute, and the topic is not paused. Then an
// event whose destination is unreachable is an exception, and no breaker will pause the topic for it.
func (f flow) delivering() bool {
	return !f.paused && !f.topic.IsZero() && time.Since(f.topic) < time.Minute
}

// spares reports whether a row keeps its attempt although its destination reports a fault of its own: for faultFor from
// the row's first fault since something of its topic was delivered, and for outageFor while nothing at all is.
func (f flow) spares(row *row, now time.Time) bool {
	since := row.firstFault(now)
	if f.topic.After(since) {
		since = f.topic
	}
	if f.any.After(since) {
		return now.Sub(since) < faultFor
	}
	return now.Sub(since) < outageFor
}

// weigh decides what a failed delivery means for its row. ownFault: this event causes the fault that the destination reports as its
// own. An event of the topic was delivered since this one was claimed, or since it failed before that, and no other event of
// the call can have caused the failure. cut: the call was cancelled.
func (r *run) weigh(row *row, err error, flow flow, ownFault, cut bool) outcome {
	e := row.event
	f := dispatcher.Failure{Lease: e.Lease(), Error: err.Error(), Cause: dispatcher.CauseOf(err), Response: dispatcher.ResponseOf(err)}
	reason, permanent := dispatcher.PermanentReason(err)
	switch {
	case permanent:
	case dispatcher.IsUnanswered(err) && e.FaultSince.IsZero() && !cut: // the error makes it a fault, so it is so once
		return outcome{release, f}
	case dispatcher.IsUnavailable(err) && (!flow.delivering() || cut): // due as before: the topic is paused soon, or all of them are
		return outcome{release, dispatcher.Failure{Lease: f.Lease}}
	case dispatcher.IsUnavailable(err), dispatcher.IsDestinationFault(err) && !ownFault && !cut && flow.spares(row, time.Now()):
		f.Delay = max(postponed(row), dispatcher.RetryAfterDelay(err))
		return outcome{release, f}
	}
	var panicked *panicError
	switch {
	case permanent:
		f.Reason = knownReason(reason)
	case e.Attempt < cmp.Or(e.MaxAttempts, r.d.cfg.MaxAttempts):
		policy := r.d.cfg.Backoff
		if e.Backoff != nil {
			policy = e.Backoff
		}
		f.Delay = max(policy.Delay(e.Attempt, rand.Float64), dispatcher.RetryAfterDelay(err))
	case errors.As(err, &panicked):
		f.Reason = dispatcher.ReasonPoisonMessage
	default:
		f.Reason = dispatcher.ReasonMaxRetriesExceeded
	}
	return outcome{verb: nack, failure: f}
}

const (
	// mostPostponed bounds the wait of a row whose attempt is given back: a paused topic waits no longer for a
	// half-open probe.
	mostPostponed = 15 * time.Second
	// faultFor is how long a row's attempts are given back while the destination reports a fault of its own and
	// delivers others. Then the row spends them: so a stream whose every event makes the destination fail ends within
	// this time and that of its attempts (CONTRACT C-32).
	faultFor = 24 * time.Hour
	// outageFor is the same while nothing is delivered at all: an outage may last for a weekend.
	outageFor = 7 * 24 * time.Hour
)

// postponed is how long a row waits whose attempt is given back while its topic is not paused: a partition has
// no leader, or one host of several is unreachable. Without a wait the row would be claimed again at once, for ever.
// The wait is a quarter of the row's age, since no counter is stored for such attempts: there are about fifty in the
// first minute, whichever workers make them. A row from the future, whose clock was ahead, has no age yet.
func postponed(row *row) time.Duration {
	age := row.sinceCreation(time.Now())
	if age < 0 {
		return time.Second
	}
	return min(age/4, mostPostponed)
}

// knownReason is the reason itself, or permanent_failure for one that is not among C-40's.
func knownReason(r dispatcher.DeadReason) dispatcher.DeadReason {
	switch r {
	case dispatcher.ReasonMaxRetriesExceeded, dispatcher.ReasonPoisonMessage, dispatcher.ReasonSchemaValidationFailed, dispatcher.ReasonProcessingTimeout:
		return r
	default:
		return dispatcher.ReasonPermanentFailure
	}
}

// panicError is the failure of an event whose delivery panicked. It says where, and no more of the
// value than is surely no payload (CONTRACT C-73).
type panicError struct{ what, where string }

func (e *panicError) Error() string {
	return fmt.Sprintf("panic in the sink at %s: %s", e.where, e.what)
}

// newPanicError must be called from the deferred function that recovered value.
func newPanicError(value any) *panicError {
	e := &panicError{what: fmt.Sprintf("a value of type %T", value), where: "an unknown place"}
	if err, ok := value.(runtime.Error); ok {
		e.what = err.Error()
	}
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for frame, more := frames.Next(); more; frame, more = frames.Next() {
		if !strings.HasPrefix(frame.Function, "runtime.") {
			e.where = fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
			break
		}
	}
	return e
}
