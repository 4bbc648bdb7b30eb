// Package consumercheck is the list of checks of a consumer (CONTRACT C-81): what is delivered, what must come of it, and
// which rule it proves. Package consumertest makes them in a Go test, the command verify-consumer over HTTP.
package consumercheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
)

// Hook names a part of the Consumer that some checks need.
type Hook string

// The hooks.
const (
	Effects    Hook = "Effects"
	Optional   Hook = "Optional"
	Restart    Hook = "Restart"
	FailEffect Hook = "FailEffect"
	FailRecord Hook = "FailRecord"
	Crash      Hook = "Crash"

	event Hook = "Event"
)

// Consumer is what is checked. Deliver and Event are required; consumertest.Consumer describes the others.
type Consumer struct {
	Deliver func(ctx context.Context, e *consumer.Event) error
	Event   func() *consumer.Event
	// Effects may be nil: then only the responses are judged.
	Effects    func(ctx context.Context, id uuid.UUID) (int, error)
	Optional   []string
	Restart    func(ctx context.Context) error
	FailEffect func(ctx context.Context, fails bool) error
	FailRecord func(ctx context.Context, fails bool) error
	Crash      func(ctx context.Context, e *consumer.Event) error
	// Ready waits, before each check, until the consumer takes deliveries. Defaults to no wait.
	Ready func(ctx context.Context) error
	// CheckTimeout bounds a check. Defaults to 30s.
	CheckTimeout time.Duration
}

func (c *Consumer) has(hook Hook) bool {
	switch hook {
	case Effects:
		return c.Effects != nil
	case Optional:
		return len(c.Optional) > 0
	case Restart:
		return c.Restart != nil
	case FailEffect:
		return c.FailEffect != nil
	case FailRecord:
		return c.FailRecord != nil
	case Crash:
		return c.Crash != nil
	}
	return true
}

// Outcome is what became of a check.
type Outcome string

// The outcomes.
const (
	// Passed is a check that found nothing wrong.
	Passed Outcome = status.ConsumerPassed
	// Partly is one whose responses are right, and whose effects were not counted.
	Partly Outcome = status.ConsumerPartly
	// Broken is one that found the rule broken.
	Broken Outcome = status.ConsumerBroken
	// NotRun is one that was left out.
	NotRun Outcome = status.ConsumerNotRun
)

// Result is what became of one check.
type Result struct {
	// Check is the name of the check, and Rule the id of the rule that it proves.
	Check, Rule string
	Outcome     Outcome
	// Needs is the hook that is missing where the outcome is NotRun or Partly. It is empty for a check that was not
	// reached.
	Needs Hook
	// Evidence says what was done and what came of it, and Remedy, in a sentence, what to change; Event is the event that
	// it was done with. Empty unless Broken.
	Evidence, Remedy string
	Event            uuid.UUID
	// Follows is the check that explains this one: it is broken too, and when it is fixed this one likely is. Empty when
	// this one stands for itself.
	Follows string
}

// Run makes all checks, one after the other, each with events of its own, and returns a result for each. Its error says
// that the consumer cannot be checked further: a hook fails, or ctx ended.
func Run(ctx context.Context, c Consumer) ([]Result, error) {
	if c.CheckTimeout == 0 {
		c.CheckTimeout = 30 * time.Second
	}
	results := make([]Result, len(checks))
	for i, check := range checks {
		results[i] = Result{Check: check.name, Rule: check.rule, Outcome: NotRun}
	}
	sequence := time.Now().UnixMicro() // higher than in any run before
	for i, check := range checks {
		switch {
		case !c.has(check.needs):
			results[i].Needs = check.needs
			continue
		case check.effects && c.Effects == nil:
			results[i].Needs = Effects
			continue
		}
		limited, cancel := context.WithTimeout(ctx, c.CheckTimeout)
		r := &run{ctx: limited, c: &c, sequence: &sequence}
		err := r.safely(check.run)
		cancel()
		if err == nil {
			err = ctx.Err() // what was found then may be for want of time
		}
		if err != nil {
			return explained(results), fmt.Errorf("%s: %w", check.name, err)
		}
		r.judge(check, &results[i])
	}
	return explained(results), nil
}

// judge writes down what the check found.
func (r *run) judge(c check, into *Result) {
	switch {
	case len(r.evidence) > 0:
		into.Outcome, into.Evidence, into.Remedy, into.Event = Broken, strings.Join(r.evidence, "; "), c.remedy, r.wrong
	case r.uncounted:
		into.Outcome, into.Needs = Partly, Effects
	default:
		into.Outcome = Passed
	}
}

// explained sets Follows. A consumer that does not handle an event passes little else.
func explained(results []Result) []Result {
	for i, check := range checks {
		if results[i].Outcome != Broken {
			continue
		}
		for _, cause := range append([]string{checks[0].name}, check.follows...) {
			if cause != check.name && slices.ContainsFunc(results, func(r Result) bool { return r.Check == cause && r.Outcome == Broken }) {
				results[i].Follows = cause
				break
			}
		}
	}
	return results
}

// run is one check of a consumer.
type run struct {
	ctx       context.Context
	c         *Consumer
	sequence  *int64
	id        uuid.UUID // the latest event
	wrong     uuid.UUID // the one of the first evidence
	evidence  []string
	uncounted bool // effects were to be counted, and cannot be
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

// again is another delivery of the event.
func again(e *consumer.Event, token int64, attempt int) *consumer.Event {
	next := *e
	next.FencingToken, next.Attempt = token, attempt
	return &next
}

// deliver hands the delivery over, on a copy. A panic is a failure, as it is to whoever runs the consumer.
func (r *run) deliver(e *consumer.Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it panicked: %v", cause)
		}
	}()
	copied := *e
	copied.Headers = map[string]string{}
	for name, value := range e.Headers {
		copied.Headers[name] = value
	}
	copied.Payload = append([]byte(nil), e.Payload...)
	return r.c.Deliver(r.ctx, &copied)
}

// acknowledged delivers, and finds it wrong when the consumer refuses.
func (r *run) acknowledged(what string, e *consumer.Event) bool {
	err := r.deliver(e)
	var useless unusable
	switch {
	case errors.As(err, &useless):
		panic(ended{useless.error})
	case err != nil:
		r.found("%s is refused: %v", what, err)
	}
	return err == nil
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
		select {
		case <-r.ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// recovers delivers to a consumer that was restarted, and records a fault when it refuses until the check's timeout.
func (r *run) recovers(what string, e *consumer.Event) bool {
	err := r.persist(e, e.FencingToken+1, 2)
	var useless unusable
	switch {
	case errors.As(err, &useless):
		panic(ended{useless.error})
	case err != nil:
		r.found("%s is refused for %s: %v", what, r.c.CheckTimeout, err)
	}
	return err == nil
}

// effects finds it wrong when the event has not this many.
func (r *run) effects(what string, e *consumer.Event, want int) {
	if r.c.Effects == nil {
		r.uncounted = true
		return
	}
	n, err := r.c.Effects(r.ctx, e.ID)
	r.must(Effects, err)
	if n != want {
		r.found("%s: %d effects, want %d", what, n, want)
	}
}
