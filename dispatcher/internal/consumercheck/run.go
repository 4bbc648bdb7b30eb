package consumercheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
)

// run is one check of a consumer.
type run struct {
	ctx       context.Context
	c         *Consumer
	sequence  *int64
	began     *time.Time         // of the first check
	kept      *[]*consumer.Event // events with one effect, for the last check
	id        uuid.UUID          // the latest event
	wrong     uuid.UUID          // the one of the first evidence
	evidence  []string
	remedy    string // in place of the check's own
	early     bool   // an event was acknowledged before it had its effect
	uncounted bool   // effects were to be counted, and cannot be
}

// ended ends the check with what a hook returned; the check says nothing of the consumer then.
type ended struct{ err error }

// Unusable marks an error of Deliver that says nothing of the consumer: the checks end with it.
func Unusable(err error) error { return unusable{err} }

type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

func (r *run) safely(check func(*run)) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			hook, ok := cause.(ended)
			if !ok {
				panic(cause)
			}
			err = hook.err
		}
	}()
	if r.c.Ready != nil {
		if err := r.c.Ready(r.ctx); err != nil {
			return err
		}
	}
	check(r)
	return nil
}

func (r *run) must(hook Hook, err error) {
	if err != nil {
		panic(ended{fmt.Errorf("the hook %s failed: %w", hook, err)})
	}
}

func (r *run) found(format string, args ...any) {
	if len(r.evidence) == 0 {
		r.wrong = r.id
	}
	if evidence := fmt.Sprintf(format, args...); !slices.Contains(r.evidence, evidence) {
		r.evidence = append(r.evidence, evidence)
	}
}

// event makes a new event, at its first delivery.
func (r *run) event() *consumer.Event {
	e := *r.c.Event()
	*r.sequence++
	e.ID, e.Attempt, e.FencingToken, e.Sequence = uuid.Must(uuid.NewV7()), 1, 100, *r.sequence
	r.id = e.ID
	return &e
}

// keep has the last check count the event again, unless something is wrong with it already.
func (r *run) keep(e *consumer.Event) {
	if len(r.evidence) == 0 {
		*r.kept = append(*r.kept, e)
	}
}

// again is another delivery of the event.
func again(e *consumer.Event, token int64, attempt int) *consumer.Event {
	next := *e
	next.FencingToken, next.Attempt = token, attempt
	return &next
}

// late is the error of a delivery whose response came after the dispatcher had given it up, or never.
type late struct {
	limit, after time.Duration
	never        bool
}

func (l late) Error() string {
	took := fmt.Sprintf("one came after %s", l.after.Round(100*time.Millisecond))
	if l.never {
		took = fmt.Sprintf("none came in %s either", l.after.Round(100*time.Millisecond))
	}
	return fmt.Sprintf("no response within %s, when a dispatcher gives it up and delivers again; %s", l.limit, took)
}

// deliver hands the delivery over, and waits for a response for longer than a dispatcher does, to say when it came. A response
// that the end of the check's own time cut off says nothing of the consumer.
func (r *run) deliver(e *consumer.Event) error {
	patient, cancel := context.WithTimeout(r.ctx, 2*r.c.ResponseTimeout)
	defer cancel()
	began := time.Now()
	err := r.send(patient, e)
	if took := time.Since(began); took > r.c.ResponseTimeout {
		return late{limit: r.c.ResponseTimeout, after: took, never: patient.Err() != nil}
	}
	if err != nil && r.ctx.Err() != nil {
		return Unusable(context.Cause(r.ctx))
	}
	return err
}

// send hands over a copy. A panic is a failure, as it is to whoever runs the consumer.
func (r *run) send(ctx context.Context, e *consumer.Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it panicked: %v", cause)
		}
	}()
	copied := *e
	copied.Headers = maps.Clone(e.Headers)
	if copied.Headers == nil {
		copied.Headers = map[string]string{}
	}
	copied.Payload = slices.Clone(e.Payload)
	return r.c.Deliver(ctx, &copied)
}

// usable ends the check where the error of a delivery says nothing of the consumer.
func (r *run) usable(err error) {
	var useless unusable
	if errors.As(err, &useless) {
		panic(ended{useless.error})
	}
}

// acknowledged delivers, and finds it wrong when the consumer refuses.
func (r *run) acknowledged(what string, e *consumer.Event) bool {
	err := r.deliver(e)
	r.refused(what, err)
	return err == nil
}

// recovers delivers until the consumer acknowledges, and finds it wrong when it refuses until the check's timeout.
func (r *run) recovers(what string, e *consumer.Event) bool {
	err := r.persist(e, e.FencingToken+1, 2)
	r.refused(what, err)
	return err == nil
}

func (r *run) refused(what string, err error) {
	var slow late
	switch {
	case err == nil:
	case errors.As(err, &slow):
		if r.found("%s: %v", what, err); len(r.evidence) == 1 {
			r.remedy = respondSooner
		}
	default:
		r.usable(err)
		r.found("%s is refused: %v", what, err)
	}
}

// persist delivers until the consumer acknowledges or time is up, as a dispatcher does, each time with a higher token.
func (r *run) persist(e *consumer.Event, token int64, attempt int) (err error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		latest := r.deliver(again(e, token, attempt))
		if r.ctx.Err() == nil || latest == nil || err == nil {
			err = latest // what the consumer said last, rather than that time is up
		}
		if latest == nil {
			return nil
		}
		token, attempt = token+8, attempt+1
		if !r.sleep(pause) {
			return err
		}
	}
}

// sleep reports whether it ended before the check's time.
func (r *run) sleep(d time.Duration) bool {
	select {
	case <-r.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// took finds it wrong, with the remedy, when an acknowledged event has not one effect. It reports whether it has.
func (r *run) took(what string, e *consumer.Event, remedy string) bool {
	switch n := r.effects(what, e, 1); {
	case len(r.evidence) == 0:
		return true
	case n > 1:
		r.remedy = "See that one delivery has one effect, and that those of its id alone are counted."
	case !r.early:
		r.remedy = remedy
	}
	return false
}

// effects finds it wrong when the event has not this many. An acknowledged event without an effect is lost; when the effect comes
// later, it was acknowledged too early.
func (r *run) effects(what string, e *consumer.Event, want int) (n int) {
	if r.c.Effects == nil {
		r.uncounted = true
		return want
	}
	n, err := r.count(e)
	r.must(Effects, err)
	switch {
	case n == want:
	case n > 0:
		r.found("%s: %d effects, want %d", what, n, want)
	case r.comes(e):
		if len(r.evidence) == 0 { // whatever the check is about
			r.remedy, r.early = acknowledgeLater, true
		}
		r.found("early: %s is acknowledged before it has its effect", what)
	default:
		r.found("lost: %s is acknowledged and has no effect", what)
	}
	return n
}

// comes counts for a while longer, until there is an effect.
func (r *run) comes(e *consumer.Event) bool {
	for range 10 {
		if !r.sleep(remembers / 10) {
			return false
		}
		n, err := r.count(e)
		r.must(Effects, err)
		if n > 0 {
			return true
		}
	}
	return false
}

func (r *run) count(e *consumer.Event) (int, error) { return r.c.Effects(r.ctx, e.ID) }
