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

// NewReport is the report of the results that [Run] gave for events of a type: failed is its error, and needs says how a
// hook is called by whoever made the checks. The time is now.
func NewReport(eventType string, results []Result, failed error, needs func(Hook) string) *status.Consumer {
	out := &status.Consumer{
		Type: eventType, At: time.Now().UTC().Truncate(time.Second), Finished: failed == nil, BrokenRules: []string{}, NotTried: []string{},
	}
	name := func(hook Hook) string {
		if hook == "" {
			return ""
		}
		return needs(hook)
	}
	for _, r := range results {
		c := status.ConsumerCheck{
			Name: r.Check, Rule: r.Rule, Outcome: string(r.Outcome), Optional: r.Optional, Needs: name(r.Needs), LeftOut: name(r.LeftOut),
			Evidence: r.Evidence, Remedy: r.Remedy, Follows: r.Follows,
		}
		switch {
		case r.Outcome == Broken:
			c.Event = r.Event.String()
			if !slices.Contains(out.BrokenRules, r.Rule) {
				out.BrokenRules = append(out.BrokenRules, r.Rule)
			}
		case r.Outcome == NotRun && !r.Optional:
			out.NotTried = append(out.NotTried, c.Title())
		}
		out.Checks = append(out.Checks, c)
	}
	slices.Sort(out.BrokenRules)
	return out
}

// check is one thing that is tried.
type check struct {
	name, rule string
	// needs is the hook without which it is left out, and optional is true where not every consumer has what it tries.
	needs    Hook
	optional bool
	// unless is a declaration that leaves it out.
	unless Hook
	// effects is true when the responses alone show nothing of it.
	effects bool
	// follows are the checks that explain it: when one of them is broken, this one is not made, since it would be broken
	// for the same cause.
	follows []string
	remedy  string
	run     func(*run)
}

// Remedies of more than one check.
const (
	respondSooner = "Respond sooner: hand longer work to a queue of your own, in the transaction of the record. Or " +
		"raise timeout of the sink, and --request-timeout to the same."
	acknowledgeLater = "Acknowledge an event when its effect is committed, and not before: nothing sends an acknowledged event again."
	wholeID          = "Dedupe on the event's whole id alone: not on aggregate, type, payload, sequence, time or a part of the id."
	oneTransaction   = "Write record and effect in one transaction."
	idAlone          = "Dedupe on the event id alone, without token and attempt."
)

// Checks that explain others.
var (
	repeats = []string{"duplicates", "replays"}
	records = []string{"duplicates", "replays", "duplicates at the same time", "a delivery that was given up", "failures are made good"}
)

// checks are all of them, in the order in which they are made. All others follow from the first two.
var checks = []check{
	{name: "responds in time", rule: "RULE-010-022", run: respondsInTime, remedy: respondSooner},
	{name: "handles an event", rule: "RULE-010-002", run: handles,
		remedy: "Take an event that is as the first one was; the consumer's log says why it did not. Where the payload has an id that must be new for each event, make it from the event's."},
	{name: "duplicates", rule: "RULE-010-002", run: duplicates,
		remedy: "Keep the id of each event that was handled, skip one that is there, and acknowledge it."},
	{name: "replays", rule: "RULE-010-002", follows: repeats, run: replays, remedy: idAlone},
	{name: "duplicates at the same time", rule: "RULE-010-012", follows: repeats, run: simultaneous,
		remedy: "Let the record's unique key decide, in the effect's transaction, and respond when that has ended."},
	{name: "a delivery that was given up", rule: "RULE-010-012", follows: append(repeats, "duplicates at the same time"), run: givenUp, remedy: oneTransaction},
	{name: "older tokens", rule: "RULE-010-002", effects: true, follows: repeats, run: olderTokens, remedy: idAlone},
	{name: "another order", rule: "RULE-010-020", run: anotherOrder,
		remedy: "Accept any order; where one is needed, compare the sequence with that of the last event applied to the aggregate. A consumer that skips older ones on purpose declares it (LatestOnly, --latest-only)."},
	{name: "several events at once", rule: "RULE-010-002", unless: LatestOnly, follows: []string{"duplicates at the same time", "another order"}, run: several,
		remedy: acknowledgeLater},
	{name: "unknown fields", rule: "RULE-010-021", run: unknownFields,
		remedy: "Ignore fields and attributes that you do not know."},
	{name: "missing fields", rule: "RULE-010-021", needs: Optional, optional: true, run: missingFields,
		remedy: "Use a default for an optional field that is missing."},
	{name: "failures are reported", rule: "RULE-010-032", needs: FailEffect, run: failuresAreReported,
		remedy: "Return the error of the effect, so that the event comes again."},
	{name: "failures are made good", rule: "RULE-010-012", needs: FailEffect, follows: []string{"failures are reported"}, run: failuresAreMadeGood,
		remedy: oneTransaction + " After a failure roll back, and begin a new one."},
	{name: "an unknown type", rule: "RULE-010-032", unless: AnyType, follows: []string{"failures are reported"}, run: unknownType,
		remedy: "Refuse an event of a type that you do not know, with 422: it is kept as a dead letter, and can be replayed. A consumer that takes or skips any type on purpose declares it (AnyType, --any-type)."},
	{name: "effect before the check", rule: "RULE-010-031", needs: FailRecord, unless: NoRecord, effects: true, follows: append(repeats, "failures are reported"), run: effectBeforeCheck,
		remedy: "Check before the effect, and fail when the check does."},
	{name: "duplicates after a restart", rule: "RULE-010-002", needs: Restart, follows: append(repeats, "failures are made good"), run: restarts,
		remedy: "Keep what was handled in a database, and acknowledge when effect and record are committed there."},
	{name: "crash between effect and record", rule: "RULE-010-012", needs: Crash, unless: NoRecord, follows: append(records, "failures are reported", "duplicates after a restart"), run: crash,
		remedy: oneTransaction},
	{name: "the fence", rule: "RULE-010-003", needs: Token, optional: true, follows: []string{"failures are reported", "failures are made good"}, run: fence,
		remedy: "Outside of the database, compare fencing tokens, and let no delivery replace what one with a higher token has left."},
	{name: "late duplicates", rule: "RULE-010-011", follows: append(repeats, "another order", "failures are made good", "duplicates after a restart"), run: lateDuplicates,
		remedy: "Remember what was handled for as long as the outbox keeps its events, which is 7 days at least: not in a cache, and not the last ones alone."},
}
