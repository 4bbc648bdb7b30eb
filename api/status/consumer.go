package status

import "time"

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

// Consumer is the report of `dispatcher verify-consumer` and consumertest on a consumer (CONTRACT C-81), and `kubectl outbox
// register` reads.
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
	Event    string `json:"event,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	// Follows is the broken check for whose cause this one was not run.
	Follows string `json:"follows,omitempty"`
}
