// Package consumertest finds out whether a consumer of an outbox's events keeps the rules of consumers (CONTRACT C-81),
// and names the one that it breaks. It needs no outbox and no broker: it makes deliveries, and counts effects.
//
//	func TestKeepsTheRules(t *testing.T) {
//		consumertest.Verify(t, consumertest.Consumer{
//			Event:   func() *consumer.Event { return &consumer.Event{EventType: "OrderPlaced", Payload: []byte(`{"order": 7}`)} },
//			Deliver: func(ctx context.Context, e *consumer.Event) error { return billing.OnEvent(ctx, e) },
//			Effects: func(ctx context.Context, id uuid.UUID) (int, error) { … count invoices of this event … },
//		})
//	}
//
// It works with any Go code that takes events, whether or not that uses package consumer.
package consumertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/consumercheck"
)

// Consumer is what is verified. Deliver, Effects and Event are required. Each hook that is missing leaves out the checks
// that need it, and the report says so.
type Consumer struct {
	// Deliver hands one delivery to the consumer, as your transport does. Nil means that the message is acknowledged.
	Deliver func(ctx context.Context, e *consumer.Event) error
	// Effects counts how often an event took effect: rows, calls, files.
	Effects func(ctx context.Context, id uuid.UUID) (int, error)
	// Event makes an event that the consumer handles. Its payload is a JSON object. The kit sets id, token, attempt and
	// sequence.
	Event func() *consumer.Event

	// Token returns the fencing token of the delivery that left an event's effect outside of the database, 0 when there is
	// none. Set it for a consumer that fences.
	Token func(ctx context.Context, id uuid.UUID) (int64, error)
	// Optional are the fields of the payload that may be missing.
	Optional []string
	// Restart ends the consumer, and starts it with nothing but its database.
	Restart func(ctx context.Context) error
	// FailEffect makes effects impossible, or possible again: it removes the table that they go to, or has the callee
	// refuse.
	FailEffect func(ctx context.Context, fails bool) error
	// FailRecord makes it impossible to look up and write what was handled, or possible again.
	FailRecord func(ctx context.Context, fails bool) error
	// Crash hands over a delivery, and ends the consumer when the effect was made and before its record is committed.
	Crash func(ctx context.Context, e *consumer.Event) error

	// AnyType declares that the consumer takes, or skips, events of any type on purpose.
	AnyType bool
	// NoRecord declares that it keeps no record of what it handled, because its effect has a unique key or is idempotent by
	// itself: then there is no record to fail, and no moment between effect and record.
	NoRecord bool
	// LatestOnly declares that it skips an event on purpose when a later one of the aggregate is applied.
	LatestOnly bool
	// ResponseTimeout is how long the sink waits for a response. Defaults to 10s.
	ResponseTimeout time.Duration
	// CheckTimeout bounds a check, which may make four deliveries in turn. Defaults to 30s.
	CheckTimeout time.Duration
	// EvidenceFile names a file to write with the evidence for an OutboxConsumer, when the checks could be finished: a patch
	// for `kubectl patch outboxconsumer NAME --type merge --patch-file FILE` (CONTRACT C-82). When empty: none.
	EvidenceFile string
}

// Finding is a rule that the consumer breaks.
type Finding struct {
	// Rule is the rule's id, such as RULE-010-002.
	Rule string
	// Check is the name of the check.
	Check string
	// Evidence says what was done and what came of it, and what to change.
	Evidence string
}

// String returns the finding as a line.
func (f Finding) String() string { return f.Rule + " (" + f.Check + "): " + f.Evidence }

// Report is what the checks found.
type Report struct {
	// Passed are the names of the checks that the consumer passed.
	Passed []string
	// Broken are the rules that it breaks.
	Broken []Finding
	// Skipped are the checks that were not made for want of a hook, with the hook that each needs.
	Skipped map[string]string
	// Follow are the checks that were not made because they would be broken for the same cause, with the check that is broken.
	Follow map[string]string
}

// Verify reports each rule that the consumer breaks as an error of the test, and logs which checks were not made.
func Verify(t *testing.T, c Consumer) {
	t.Helper()
	report, err := Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range report.Broken {
		t.Error(finding)
	}
	for check, hook := range report.Skipped {
		t.Logf("not checked: %s; set Consumer.%s", check, hook)
	}
}

// Check makes all checks, one after the other, each with events of its own. Its error says that the consumer cannot be
// checked: a required field is missing, or a hook fails.
func Check(ctx context.Context, c Consumer) (Report, error) {
	if c.Deliver == nil || c.Effects == nil || c.Event == nil {
		return Report{}, errors.New("consumertest: set Deliver, Effects and Event of the Consumer")
	}
	results, err := consumercheck.Run(ctx, consumercheck.Consumer{
		Deliver: c.Deliver, Effects: c.Effects, Event: c.Event, Optional: c.Optional, Restart: c.Restart,
		FailEffect: c.FailEffect, FailRecord: c.FailRecord, Crash: c.Crash, Token: c.Token, CheckTimeout: c.CheckTimeout,
		AnyType: c.AnyType, NoRecord: c.NoRecord, LatestOnly: c.LatestOnly, ResponseTimeout: c.ResponseTimeout,
	})
	report := Report{Skipped: map[string]string{}, Follow: map[string]string{}}
	for _, r := range results {
		switch {
		case r.Outcome == consumercheck.Passed:
			report.Passed = append(report.Passed, r.Check)
		case r.Outcome == consumercheck.Broken:
			report.Broken = append(report.Broken, Finding{r.Rule, r.Check, r.Evidence + ". " + r.Remedy})
		case r.Follows != "":
			report.Follow[r.Check] = r.Follows
		case r.Needs != "":
			report.Skipped[r.Check] = string(r.Needs)
		}
	}
	if err != nil {
		return report, fmt.Errorf("consumertest: %w", err)
	}
	if c.EvidenceFile == "" {
		return report, nil
	}
	found := consumercheck.NewReport(c.Event().EventType, results, nil, func(hook consumercheck.Hook) string { return "Consumer." + string(hook) })
	if err := found.WriteEvidence(c.EvidenceFile); err != nil {
		return report, fmt.Errorf("consumertest: %w; correct Consumer.EvidenceFile", err)
	}
	return report, nil
}
