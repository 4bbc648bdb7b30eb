package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
)

// print writes what happened for a person: a line for each kind of fault, the ledger, and what is wrong.
func (r *result) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "fault\tcount\theld rows back: median\tmax\tunacked deliveries\t")
	for _, k := range slices.Concat(foreground, background, []kind{down, nap, stall}) {
		others := func(f injected) bool { return f.kind != k }
		n := len(slices.DeleteFunc(slices.Clone(r.history.faults), others))
		if n == 0 {
			continue
		}
		var rows []time.Duration
		for _, one := range r.recoveries {
			if one.fault.kind == k && one.rows != unknown && one.held > 0 {
				rows = append(rows, one.rows)
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t\n", k, n, spread(rows), r.ledger.explained[k])
	}
	_ = table.Flush() // to w, which is the caller's
	l := r.ledger
	fmt.Fprintf(w, "\n%d events committed, %d of them copies, %d rolled back; %d delivered, %d of them more than once in all, %d withdrawn, %d expired",
		l.committed, l.copies, l.rolledBack, l.delivered, l.duplicates, l.withdrawn, l.expired)
	for _, reason := range slices.Sorted(maps.Keys(l.dead)) {
		fmt.Fprintf(w, ", %d dead: %s", l.dead[reason], reason)
	}
	fmt.Fprintf(w, "; %d replays; at most %d requests in 10 s", l.replays, l.busiest)
	if r.history.limit > 0 {
		fmt.Fprintf(w, ", of a limit of %d a second", r.history.limit)
	}
	if l.forgotten > 0 {
		fmt.Fprintf(w, "; %d forgotten by failovers", l.forgotten)
	}
	if l.tried > 0 {
		fmt.Fprintf(w, "; %d still tried, a few at a time, since the consumer refuses them", l.tried)
	}
	fmt.Fprintln(w)
	if len(l.waits) == 0 {
		fmt.Fprintln(w, "A fault was near every event, so this run does not show how long others wait; one with fewer -faults does.")
	}
	for _, topic := range slices.Sorted(maps.Keys(l.waits)) {
		all := l.waits[topic]
		fmt.Fprintf(w, "%s: %d events that no fault hit waited for %s at the median, %s at p99 (%s are wanted), %s at most\n", topic, len(all),
			all[len(all)/2].Round(time.Millisecond), all[len(all)*99/100].Round(time.Millisecond), wanted, all[len(all)-1].Round(time.Millisecond))
	}
	for _, t := range r.tardy {
		fmt.Fprintf(w, "SLOW: after %s at %s (%s), %d held events took %s to be delivered\n", t.fault.kind, t.fault.start.Format(clockTime), t.fault.note, t.held, t.rows.Round(time.Millisecond))
		t.last.print(w)
	}
	l.printViolations(w)
	if r.failed() {
		fmt.Fprintf(w, "FAILED %s. Replay it with:\n  %s\nLogs and journals are in %s\n", r.options.mode(), r.options.command(), r.dir)
	} else {
		fmt.Fprintf(w, "PASSED %s: nothing lost, nothing doubled without a cause. %s\n", r.options.mode(), r.options.command())
	}
}

// shown is how many events of each broken rule are printed with their history.
const shown = 5

func (l *ledger) printViolations(w io.Writer) {
	counts := map[string]int{}
	for _, v := range l.violations {
		if counts[v.rule]++; counts[v.rule] > shown {
			continue
		}
		fmt.Fprintf(w, "VIOLATION %s: %s\n", v.rule, v.what)
		if v.event != nil {
			v.event.print(w)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%6d × %s\n", counts[rule], rule)
	}
}

// print writes the event's history.
func (e *event) print(w io.Writer) {
	fmt.Fprintf(w, "  event %s (%s), topic %q, key %q, seq %d, committed %t at %s\n", e.id, e.eventType, e.topic, e.key, e.seq, e.committed, e.committedAt.Format(clockTime))
	deliveries := e.deliveries
	for _, m := range e.moves {
		for len(deliveries) > 0 && deliveries[0].At.Before(m.at) {
			fmt.Fprintf(w, "    %s the consumer confirmed lease %d\n", deliveries[0].At.Format(clockTime), deliveries[0].Token)
			deliveries = deliveries[1:]
		}
		fmt.Fprintf(w, "    %s %-11s lease %d → %d, attempts %d → %d, worker %s → %s, until %s %s %s\n", m.at.Format(clockTime), m.verb,
			m.from.lease, m.to.lease, m.from.attempts, m.to.attempts, shortID(m.from.worker), shortID(m.to.worker),
			m.to.until.Format(clockTime), m.reason, m.err)
	}
	for _, d := range deliveries {
		fmt.Fprintf(w, "    %s the consumer confirmed lease %d\n", d.At.Format(clockTime), d.Token)
	}
}

// shortID is enough of a worker's id to distinguish two.
func shortID(worker uuid.UUID) string {
	if worker == uuid.Nil {
		return "none"
	}
	return worker.String()[24:]
}

// spread is the median and the maximum.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "–\t–"
	}
	slices.Sort(all)
	return fmt.Sprintf("%.1f s\t%.1f s", all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
}
