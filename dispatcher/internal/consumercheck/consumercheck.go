// Package consumercheck is the list of checks of a consumer (CONTRACT C-81): what is delivered, what must come of it, and
// which rule it proves. Package consumertest makes them in a Go test, the command verify-consumer over HTTP.
package consumercheck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
)

// Hook names a part of the Consumer that some checks need, or that leaves them out.
type Hook string

// The hooks, and the declarations.
const (
	Effects    Hook = "Effects"
	Token      Hook = "Token"
	Optional   Hook = "Optional"
	Restart    Hook = "Restart"
	FailEffect Hook = "FailEffect"
	FailRecord Hook = "FailRecord"
	Crash      Hook = "Crash"
	AnyType    Hook = "AnyType"
	NoRecord   Hook = "NoRecord"
	LatestOnly Hook = "LatestOnly"

	event Hook = "Event"
)

// remembers is how long after its first delivery an event comes again at the end.
const remembers = time.Second

// Consumer is what is checked. Deliver and Event are required; consumertest.Consumer describes the others.
type Consumer struct {
	Deliver func(ctx context.Context, e *consumer.Event) error
	Event   func() *consumer.Event
	// Effects may be nil: then only the responses are judged.
	Effects    func(ctx context.Context, id uuid.UUID) (int, error)
	Token      func(ctx context.Context, id uuid.UUID) (int64, error)
	Optional   []string
	Restart    func(ctx context.Context) error
	FailEffect func(ctx context.Context, fails bool) error
	FailRecord func(ctx context.Context, fails bool) error
	Crash      func(ctx context.Context, e *consumer.Event) error

	AnyType, NoRecord, LatestOnly bool

	// Ready waits, before each check, until the consumer takes deliveries. Defaults to no wait.
	Ready func(ctx context.Context) error
	// ResponseTimeout is when a dispatcher gives a delivery up. Defaults to 10s. A late response is awaited once more for
	// as long.
	ResponseTimeout time.Duration
	// CheckTimeout bounds a check, which may make four deliveries in turn. Defaults to 30s.
	CheckTimeout time.Duration
}

func (c *Consumer) has(hook Hook) bool {
	switch hook {
	case Effects:
		return c.Effects != nil
	case Token:
		return c.Token != nil
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

// declared reports whether the consumer leaves checks out.
func (c *Consumer) declared(hook Hook) bool {
	return hook == AnyType && c.AnyType || hook == NoRecord && c.NoRecord || hook == LatestOnly && c.LatestOnly
}

// Outcome is what became of a check.
type Outcome string

// Values of [Outcome].
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
	// Optional is true for a check that not every consumer needs, or that this one declares to be without meaning.
	Optional bool
	// Needs is the hook that is missing where the outcome is NotRun or Partly, and LeftOut the declaration by which the
	// check was left out. Both are empty for a check that was not reached.
	Needs, LeftOut Hook
	// Evidence says what was done and what came of it, and Remedy, in a sentence, what to change; Event is the event that
	// it was done with. Empty unless Broken.
	Evidence, Remedy string
	Event            uuid.UUID
	// Follows is the check that is broken, and for whose cause this one would be too: so it was not run. Empty for others.
	Follows string

	early bool // an event was acknowledged before it had its effect, which explains all that comes
}

// Run makes all checks, one after the other, each with events of its own, and returns a result for each. A check that
// would be broken for the cause of one before it is not made. Its error says that the consumer cannot be checked
// further: a hook fails, or ctx ended.
func Run(ctx context.Context, c Consumer) ([]Result, error) {
	if c.CheckTimeout == 0 {
		c.CheckTimeout = 30 * time.Second
	}
	if c.ResponseTimeout == 0 {
		c.ResponseTimeout = 10 * time.Second
	}
	results := make([]Result, len(checks))
	for i, check := range checks {
		results[i] = Result{Check: check.name, Rule: check.rule, Outcome: NotRun, Optional: check.optional || c.declared(check.unless)}
	}
	began, sequence, kept := time.Now(), time.Now().UnixMicro(), []*consumer.Event{} // a sequence higher than in any run before
	for i, check := range checks {
		switch {
		case c.declared(check.unless):
			results[i].LeftOut = check.unless
			continue
		case !c.has(check.needs):
			results[i].Needs = check.needs
			continue
		case check.effects && c.Effects == nil:
			results[i].Needs = Effects
			continue
		}
		if results[i].Follows = explains(check, results[:i]); results[i].Follows != "" {
			continue
		}
		limited, cancel := context.WithTimeoutCause(ctx, c.CheckTimeout, fmt.Errorf(
			"the check was not done within %s, which its deliveries may take together; raise CheckTimeout, or --timeout, of which a check may take a tenth", c.CheckTimeout))
		r := &run{ctx: limited, c: &c, sequence: &sequence, began: &began, kept: &kept}
		err := r.safely(check.run)
		cancel()
		if err == nil {
			err = ctx.Err() // what was found then may be for want of time
		}
		if err != nil {
			return results, fmt.Errorf("%s: %w", check.name, err)
		}
		r.judge(check, &results[i])
	}
	return results, nil
}

// explains is the first broken check that explains this one, or empty. A consumer that does not handle an event in time, or
// acknowledges too early, passes little else.
func explains(c check, results []Result) string {
	for i, r := range results {
		if r.Outcome == Broken && (i < 2 || r.early || slices.Contains(c.follows, r.Check)) {
			return r.Check
		}
	}
	return ""
}

// judge writes down what the check found.
func (r *run) judge(c check, into *Result) {
	switch {
	case len(r.evidence) > 0:
		into.Outcome, into.Evidence, into.Remedy, into.Event = Broken, strings.Join(r.evidence, "; "), cmp.Or(r.remedy, c.remedy), r.wrong
		into.early = r.early
	case r.uncounted:
		into.Outcome, into.Needs = Partly, Effects
	default:
		into.Outcome = Passed
	}
}
