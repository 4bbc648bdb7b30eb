package consumercheck

import (
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// NewReport is the report of the results that [Run] gave for events of a type: failed is its error, and needs says how a
// hook is called by whoever made the checks. The time is now.
func NewReport(eventType string, results []Result, failed error, needs func(Hook) string) *status.Consumer {
	out := &status.Consumer{Type: eventType, At: time.Now().UTC().Truncate(time.Second), Finished: failed == nil, BrokenRules: []string{}}
	for _, r := range results {
		c := status.ConsumerCheck{Name: r.Check, Rule: r.Rule, Outcome: string(r.Outcome), Evidence: r.Evidence, Remedy: r.Remedy, Follows: r.Follows}
		if r.Needs != "" {
			c.Needs = needs(r.Needs)
		}
		if r.Outcome == Broken {
			c.Event = r.Event.String()
			if r.Follows == "" && !slices.Contains(out.BrokenRules, r.Rule) {
				out.BrokenRules = append(out.BrokenRules, r.Rule)
			}
		}
		out.Checks = append(out.Checks, c)
	}
	slices.Sort(out.BrokenRules)
	return out
}
