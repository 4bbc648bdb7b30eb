package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// markdown writes the results for a reader: a table for each cell.
func markdown(r *results) string {
	var t strings.Builder
	fmt.Fprintf(&t, "# Benchmark\n\n%s, took %s, by `make bench`. %s. %s with:\n\n", r.Began, r.Took, r.Machine, r.PostgreSQL)
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		fmt.Fprintf(&t, "    %s = %s\n", name, r.Settings[name])
	}
	var peers []string
	for _, name := range slices.Sorted(maps.Keys(r.Peers)) {
		peers = append(peers, name+" "+r.Peers[name])
	}
	fmt.Fprintf(&t, "\nPeers: %s. One system at a time, each run in a fresh database after a checkpoint and with fresh statistics.\n"+
		"Numbers are medians; of several runs, the lowest and the highest are in brackets.\n"+
		"Ratios are those of the same round, and of them the median.\n", strings.Join(peers, ", "))
	for _, note := range r.Notes {
		fmt.Fprintf(&t, "\n%s\n", note)
	}
	fmt.Fprintf(&t, "\n## Targets\n\n%s", acceptanceTable(r.Acceptance))
	for _, c := range cells {
		table(&t, c, r.Rows)
	}
	return t.String()
}

func table(t *strings.Builder, c cell, all []*row) {
	var rows []*row
	for _, r := range all {
		if r.Cell == c.name {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return caseRank(rows, a) - caseRank(rows, b) })
	columns := slices.DeleteFunc(slices.Clone(c.columns), func(m metric) bool {
		return !slices.ContainsFunc(rows, func(r *row) bool { _, ok := r.Median[m]; return ok })
	})
	fmt.Fprintf(t, "\n## %s\n\n%s\n\n| | system |", c.title, c.about)
	for _, m := range columns {
		fmt.Fprintf(t, " %s |", m)
	}
	fmt.Fprintf(t, "\n|---|---|%s\n", strings.Repeat("---:|", len(columns)))
	settings := map[string]string{}
	var names []string
	for _, r := range rows {
		fmt.Fprintf(t, "| %s | %s |", r.Case, r.System)
		for _, m := range columns {
			fmt.Fprintf(t, " %s |", r.cellText(m))
		}
		if r.Failed != "" {
			fmt.Fprintf(t, " FAILED: %s |", inCell(r.Failed))
		}
		t.WriteString("\n")
		if _, seen := settings[r.System]; !seen {
			names = append(names, r.System)
		}
		settings[r.System] = r.Settings
	}
	t.WriteString("\nSettings:")
	for _, name := range names {
		fmt.Fprintf(t, " %s: %s.", name, settings[name])
	}
	t.WriteString("\n")
}

// caseRank orders rows by when their case was first measured.
func caseRank(rows []*row, r *row) int {
	return slices.IndexFunc(rows, func(other *row) bool { return other.Case == r.Case })
}

// cellText is a median, with its spread if there is one.
func (r *row) cellText(m metric) string {
	v, ok := r.Median[m]
	if !ok {
		return "–"
	}
	if text := m.text(v); len(r.Runs) > 1 && (m == perSecond || m == p50 || m == p99 || m == worstTopic || m == othersRate) {
		return fmt.Sprintf("%s [%s, %s]", text, m.text(r.Low[m]), m.text(r.High[m]))
	}
	return m.text(v)
}

// inCell is a text as a cell of a table takes it: one line, and not a long one.
func inCell(text string) string {
	const limit = 160
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
