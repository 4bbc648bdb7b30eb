package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// raised are the alerts that a run raises by right, with the faults that do.
var raised = map[string][]kind{"OutboxDeadLettersGrow": {unreadable}, "OutboxOutcomesRefused": {reject}, "OutboxClaimsRefused": {unclaimed}}

// judgeAlerts says which alerts fired, and fails the run for those that nothing has raised. No manager is there to be scraped.
func (w *world) judgeAlerts(ctx context.Context, from, to time.Time) {
	const firing = `count by (alertname) (ALERTS{alertstate="firing", alertname!="OutboxOperatorAbsent"})`
	fired, err := w.prometheus.Range(ctx, firing, from, to)
	scraped, e := w.prometheus.Range(ctx, `count(up == 1)`, from, to)
	if err != nil || e != nil || len(scraped) == 0 {
		w.fail("the alerts cannot be read: %v %v", err, e)
	}
	fmt.Fprintf(w.out, "%d alerts fired:\n", len(fired))
	for _, of := range slices.Sorted(maps.Keys(fired)) {
		name := strings.TrimSuffix(strings.TrimPrefix(of, "map[alertname:"), "]")
		byRight := slices.ContainsFunc(w.kinds, func(k kind) bool { return slices.Contains(raised[name], k) })
		fmt.Fprintf(w.out, "  %s, for %d s, by right: %t\n", name, len(fired[of]), byRight)
		if !byRight {
			w.fail("the alert %s fired, which no fault of the run raises", name)
		}
	}
}
