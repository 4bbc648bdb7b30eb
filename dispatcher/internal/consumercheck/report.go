package consumercheck

import (
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
)

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
