package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Outcomes of a [ConsumerCheck].
const (
	// ConsumerPassed found nothing wrong.
	ConsumerPassed = "Passed"
	// ConsumerPartly found the responses right, without a count of the effects.
	ConsumerPartly = "Partly"
	// ConsumerBroken found the rule broken.
	ConsumerBroken = "Broken"
	// ConsumerNotRun was not run.
	ConsumerNotRun = "NotRun"
)

// Consumer is the report of `dispatcher verify-consumer` and consumertest on a consumer (CONTRACT C-81).
type Consumer struct {
	// URL and ContentMode are empty for a consumer that was verified in a Go test.
	URL         string    `json:"url,omitempty"`
	ContentMode string    `json:"contentMode,omitempty"`
	Type        string    `json:"type"`
	At          time.Time `json:"at"`
	// Finished is false when a check could not be made; those after it are NotRun.
	Finished bool `json:"finished"`
	// BrokenRules are the ids of the broken rules.
	BrokenRules []string `json:"brokenRules"`
	// NotTried are the checks that were not run although no declaration leaves them out and they are not optional, as their
	// rule with the check in parentheses. While there are some the consumer is not verified.
	NotTried []string        `json:"notTried"`
	Checks   []ConsumerCheck `json:"checks"`
}

// Count is the number of checks with an outcome.
func (c *Consumer) Count(outcome string) (n int) {
	for _, check := range c.Checks {
		if check.Outcome == outcome {
			n++
		}
	}
	return n
}

// Title is the rule with the check in parentheses.
func (c *ConsumerCheck) Title() string { return c.Rule + " (" + c.Name + ")" }

// ConsumerCheck is one check of a consumer.
type ConsumerCheck struct {
	Name    string `json:"name"`
	Rule    string `json:"rule"`
	Outcome string `json:"outcome"`
	// Optional is true for a check that not every consumer needs.
	Optional bool `json:"optional,omitempty"`
	// Needs are the flags without which the check was not made, or not wholly, and LeftOut is the one by which it was left out.
	Needs   string `json:"needs,omitempty"`
	LeftOut string `json:"leftOut,omitempty"`
	// Evidence says what was done with the Event and what came of it, and Remedy what to change.
	Evidence string `json:"evidence,omitempty"`
	// Event is the id of the event that a broken check was made with, empty for others.
	Event  string `json:"event,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Follows is the name of the broken check because of which this one was not run.
	Follows string `json:"follows,omitempty"`
}

// ConsumerEvidence is what a report proves, as spec.evidence of an OutboxConsumer has it (CONTRACT C-82).
type ConsumerEvidence struct {
	VerifiedAt time.Time `json:"verifiedAt"`
	EventType  string    `json:"eventType"`
	// Checks is the number of checks, Passed of those that found nothing wrong, and Uncounted of those with the outcome
	// ConsumerPartly.
	Checks      int      `json:"checks"`
	Passed      int      `json:"passed"`
	Uncounted   int      `json:"uncounted"`
	BrokenRules []string `json:"brokenRules"`
	NotTried    []string `json:"notTried"`
	// LeftOut are the titles of the optional checks that were not run.
	LeftOut []string `json:"leftOut"`
}

// EvidencePatch returns the JSON merge patch that makes the report the evidence of an OutboxConsumer. It replaces all that
// the evidence before said. It fails for a report that is not Finished, which proves nothing.
func (c *Consumer) EvidencePatch() ([]byte, error) {
	if !c.Finished {
		return nil, errors.New("the checks were not finished, so they prove nothing; run them again")
	}
	evidence := ConsumerEvidence{
		VerifiedAt: c.At.UTC().Truncate(time.Second), EventType: c.Type,
		Checks: len(c.Checks), Passed: c.Count(ConsumerPassed), Uncounted: c.Count(ConsumerPartly),
		BrokenRules: c.BrokenRules, NotTried: c.NotTried, LeftOut: []string{},
	}
	for _, check := range c.Checks {
		if check.Outcome == ConsumerNotRun && check.Optional {
			evidence.LeftOut = append(evidence.LeftOut, check.Title())
		}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"evidence": evidence}})
	return append(patch, '\n'), err
}

// WriteEvidence writes the [Consumer.EvidencePatch] to a file, and fails when it cannot.
func (c *Consumer) WriteEvidence(file string) error {
	patch, err := c.EvidencePatch()
	if err == nil {
		err = os.WriteFile(file, patch, 0o644) //nolint:gosec // it is public
	}
	if err != nil {
		return fmt.Errorf("write the evidence: %w", err)
	}
	return nil
}
