package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metric is a number that a run measures.
type metric string

// The metrics. Those of an event are per event.
const (
	perSecond     metric = "events/s"
	dbCPU         metric = "db CPU µs/event"
	clientCPU     metric = "client CPU µs/event"
	brokerCPU     metric = "broker CPU µs/event"
	walWork       metric = "WAL B/event" // of the delivery
	walInsert     metric = "insert WAL B/event"
	p50           metric = "p50 ms"
	p95           metric = "p95 ms"
	p99           metric = "p99 ms"
	longest       metric = "max ms"
	othersRate    metric = "other keys' events/s"
	inversions    metric = "inversions"
	peakMiB       metric = "peak MiB" // of the relay's process
	doubled       metric = "doubled"
	statementRate metric = "statements/s"
)

// text writes a value as the tables show it: whole numbers where they are large.
func (m metric) text(v float64) string {
	switch {
	case v >= 100 || strings.HasSuffix(string(m), "B/event") || m == inversions || m == doubled:
		return thousands(int64(v + 0.5))
	case strings.HasSuffix(string(m), "ms"):
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// measure is what one run measured.
type measure map[metric]float64

func (m measure) String() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		words = append(words, name.text(m[name])+" "+string(name))
	}
	return strings.Join(words, ", ")
}

// waits adds the percentiles of waits in milliseconds, by the nearest rank.
func (m measure) waits(all []float64) {
	slices.Sort(all)
	for name, p := range map[metric]int{p50: 50, p95: 95, p99: 99, longest: 100} {
		m[name] = all[max(1, (p*len(all)+99)/100)-1]
	}
}

// row is one system in one case of a cell: a line of a table.
type row struct {
	cell, system, settings string
	which                  string // the case: what differs from other rows of the cell
	failed                 string // why it has no numbers, or not all of its runs
	runs                   []measure
}

// of is the median of a metric over the runs, with the lowest and the highest.
func (r *row) of(m metric) (median, low, high float64, ok bool) {
	var all []float64
	for _, run := range r.runs {
		if v, measured := run[m]; measured {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return 0, 0, 0, false
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2, all[0], all[len(all)-1], true
}

// text is a median as a table shows it, for what decides with its spread.
func (r *row) text(m metric) string {
	median, low, high, ok := r.of(m)
	switch {
	case !ok:
		return "–"
	case len(r.runs) > 1 && (m == perSecond || m == othersRate || m == p50 || m == p99):
		return fmt.Sprintf("%s [%s, %s]", m.text(median), m.text(low), m.text(high))
	}
	return m.text(median)
}

// results is all that a run of the benchmark has found.
type results struct {
	began           time.Time
	postgres, river string // versions
	notes           []string
	rows            []*row
}

// markdown writes the results for a reader: a table for each cell.
func (r *results) markdown() string {
	var t strings.Builder
	fmt.Fprintf(&t, "# Benchmark\n\n%s UTC, took %s, by `make bench`. %d cores (%s), shared by PostgreSQL, producers, workers and brokers. %s with:\n\n",
		r.began.UTC().Format(time.DateTime), time.Since(r.began).Round(time.Second), runtime.NumCPU(), processor(), r.postgres)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&t, "    %s = %s\n", name, settings[name])
	}
	fmt.Fprintf(&t, "\nRiver is %s. One system at a time, each run in a fresh database after a checkpoint and with fresh statistics.\n"+
		"Numbers are medians; the lowest and the highest of several runs are in brackets.\n", r.river)
	for _, note := range r.notes {
		fmt.Fprintf(&t, "\n**%s**\n", note)
	}
	for _, c := range cells {
		r.table(&t, c)
	}
	return t.String()
}

func (r *results) table(t *strings.Builder, c cell) {
	rows := slices.DeleteFunc(slices.Clone(r.rows), func(r *row) bool { return r.cell != c.name })
	if len(rows) == 0 {
		return
	}
	first := func(which string) int { return slices.IndexFunc(rows, func(r *row) bool { return r.which == which }) }
	order := map[string]int{}
	for _, r := range rows {
		order[r.which] = first(r.which)
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return order[a.which] - order[b.which] })
	fmt.Fprintf(t, "\n## %s\n\n%s\n\n| | system |", c.title, c.about)
	for _, m := range c.columns {
		fmt.Fprintf(t, " %s |", m)
	}
	fmt.Fprintf(t, "\n|---|---|%s\n", strings.Repeat("---:|", len(c.columns)))
	var chosen []string
	for _, r := range rows {
		fmt.Fprintf(t, "| %s | %s |", r.which, r.system)
		for _, m := range c.columns {
			fmt.Fprintf(t, " %s |", r.text(m))
		}
		if r.failed != "" {
			fmt.Fprintf(t, " FAILED: %.160s |", strings.ReplaceAll(strings.Join(strings.Fields(r.failed), " "), "|", "/"))
		}
		t.WriteString("\n")
		if text := "- " + r.system + ": " + r.settings + "."; !slices.Contains(chosen, text) {
			chosen = append(chosen, text)
		}
	}
	fmt.Fprintf(t, "\n%s\n", strings.Join(chosen, "\n"))
}
