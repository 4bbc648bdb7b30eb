package dispatcher

import (
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
)

// deliverLoop delivers what is queued, one batch after the other, until the flight is closed.
func (r *run) deliverLoop() {
	var d delivery
	for r.flight.take(&d, r.sinkBatch) {
		r.deliver(&d)
	}
}

// deliver hands a batch to the sink, and what came of it to the completer.
func (r *run) deliver(d *delivery) {
	events := make([]*Event, len(d.rows))
	for i, row := range d.rows {
		events[i] = row.event
	}
	errs := r.publish(d.ctx, events)
	took := time.Since(d.began)
	cut := context.Cause(d.ctx)

	behind := r.flight.finish(d, errs)
	r.completer.release(behind)
	d.results = d.results[:0]
	for i, row := range d.rows {
		if d.ours[i] {
			d.results = append(d.results, result{row: row, outcome: r.judge(row, errs[i], cut, d.began, took)})
		}
	}
	r.completer.add(d.results)
	clear(d.results) // or its memory would keep the events
	d.rows = nil
}

// publish calls the sink, and answers for each event whatever the sink does.
func (r *run) publish(ctx context.Context, batch []*Event) (errs []error) {
	defer func() {
		if v := recover(); v != nil {
			err := newPanicError(v)
			r.log.Debug("the sink panicked", "topic", batch[0].Topic, "error", err, "stack", string(debug.Stack()))
			errs = slices.Repeat([]error{err}, len(batch))
		}
	}()
	errs = r.sink.Deliver(ctx, batch)
	if len(errs) != len(batch) {
		return slices.Repeat([]error{fmt.Errorf("the sink gave %d answers for %d events; it must answer for each", len(errs), len(batch))}, len(batch))
	}
	return errs
}

// judge tells health and the observer about an event's delivery, and returns what to write back.
// cut is why the delivery was cancelled, if it was: then its outcome is not known, and says nothing
// of the destination.
func (r *run) judge(row *row, err, cut error, began time.Time, took time.Duration) outcome {
	e := row.event
	if err == nil {
		r.health.delivered(e, began.Add(took))
		r.cfg.Observer.Delivered(e, row.ageAt(began), took)
		return outcome{verb: ack}
	}
	if cut != nil {
		err = fmt.Errorf("%w: %w", cut, err)
	} else if r.health.failed(e, err, began, began.Add(took)) {
		r.releaseTopic(e.Topic)
	}
	out := r.weigh(e, err)
	if out.verb == release && cut == nil && r.health.partly(e.Topic) {
		out = postponed(row, err)
	}
	r.cfg.Observer.Failed(e, err, took, out.failure.Delay)
	r.log.Debug("delivery failed", "event", e.ID, "topic", e.Topic, "attempt", e.Attempt,
		"outcome", out.verb, "retryIn", out.failure.Delay, "error", err)
	return out
}

// weigh decides what a failed delivery means for its row.
func (r *run) weigh(e *Event, err error) outcome {
	if IsUnavailable(err) {
		return outcome{verb: release} // surely not delivered: the attempt is given back
	}
	f := Failure{Lease: e.Lease(), Error: storable(err)}
	reason, permanent := PermanentReason(err)
	var panicked *panicError
	switch {
	case permanent:
		f.Reason = reason.known()
	case e.Attempt < r.cfg.MaxAttempts:
		f.Delay = max(r.cfg.Backoff.Delay(e.Attempt, rand.Float64), RetryAfterDelay(err))
	case errors.As(err, &panicked):
		f.Reason = ReasonPoisonMessage
	default:
		f.Reason = ReasonMaxRetriesExceeded
	}
	return outcome{verb: nack, failure: f}
}

// mostPostponed bounds the wait of a row whose attempt is given back: a held topic waits no longer for a trial.
const mostPostponed = 15 * time.Second

// postponed gives an attempt back, and makes the row wait. Others of its topic are delivered, so that no
// breaker opens: a partition without a leader, one host of several. Due as before, the row would be
// claimed again at once, for ever. Nobody counts how often it found nobody, so it waits for a quarter of its
// age: some fifty tries in the first minute, whichever workers make them.
func postponed(row *row, err error) outcome {
	wait := min(max(0, row.ageAt(time.Now())/4), mostPostponed)
	return outcome{verb: nack, failure: Failure{Lease: row.event.Lease(), Error: storable(err), Delay: wait, Unspent: true}}
}

// known is the reason itself, or permanent_failure for one that is not among C-40's.
func (r DeadReason) known() DeadReason {
	switch r {
	case ReasonMaxRetriesExceeded, ReasonPoisonMessage, ReasonSchemaValidationFailed, ReasonProcessingTimeout:
		return r
	default:
		return ReasonPermanentFailure
	}
}

// storable is an error's text as PostgreSQL takes it.
func storable(err error) string {
	return strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD")
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
