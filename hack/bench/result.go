package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// metric is a number that a run measures.
type metric string

// The metrics.
const (
	perSecond    metric = "events/s"
	dbCPU        metric = "db CPU µs/event"
	clientCPU    metric = "client CPU µs/event"
	brokerCPU    metric = "broker CPU µs/event"
	toolRate     metric = "its own tool's msgs/s"
	walWork      metric = "WAL B/event" // claim and write-back
	walInsert    metric = "insert WAL B/event"
	insertCPU    metric = "insert db CPU µs/event"
	hotShare     metric = "HOT %"
	peakMemMiB   metric = "peak MiB" // of a worker process
	fileMemMiB   metric = "of it the program's file, MiB"
	calls        metric = "statements/1000 events"
	claimBuffers metric = "claim buffers/event"
	claimMillis  metric = "claim ms/500 events"
	p50          metric = "p50 ms"
	p95          metric = "p95 ms"
	p99          metric = "p99 ms"
	pMax         metric = "max ms"
	dbLoad       metric = "db CPU %"     // of one core
	clientLoad   metric = "client CPU %" // of one core
	callRate     metric = "statements/s"
	worstTopic   metric = "p99 ms, worst topic"
	medianTopic  metric = "p99 ms, median topic"
	othersRate   metric = "other keys' events/s"
	inversions   metric = "inversions"
	removedRate  metric = "rows removed/s" // by retention
	sendRate     metric = "batches/s"
	// Of the cells kafka and outage, in seconds.
	brokerSeconds metric = "broker CPU s"
	firstAfter    metric = "first record after s"
	allAfter      metric = "last record after s"
	startTook     metric = "broker's start s"
	// Of events, in the cell debezium and after an outage.
	lostEvents    metric = "missing"
	doubledEvents metric = "doubled"
	deadEvents    metric = "dead letters"
	laterShare    metric = "later events delivered %"
)

// text writes a value as the tables show it.
func (m metric) text(v float64) string {
	switch m {
	case perSecond, othersRate, toolRate, removedRate, walWork, walInsert, calls, inversions, lostEvents, doubledEvents, deadEvents:
		return thousands(int64(v + 0.5))
	case p50, p95, p99, pMax, worstTopic, medianTopic, claimBuffers, claimMillis, callRate, dbLoad, clientLoad, brokerSeconds, firstAfter, allAfter, startTook:
		if v < 100 {
			return strconv.FormatFloat(v, 'f', 2, 64)
		}
		return thousands(int64(v + 0.5))
	default:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
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

// brief is the run in a line of progress.
func (m measure) brief() string {
	var words []string
	for _, name := range []metric{perSecond, dbCPU, insertCPU, clientCPU, brokerCPU, toolRate, walWork, p50, p99, medianTopic, worstTopic, inversions, removedRate, peakMemMiB, fileMemMiB, callRate,
		sendRate, brokerSeconds, firstAfter, allAfter, startTook, lostEvents, doubledEvents, laterShare, deadEvents} {
		if v, ok := m[name]; ok {
			words = append(words, name.text(v)+" "+string(name))
		}
	}
	return strings.Join(words, ", ")
}

// row is one system in one cell: a line of a table.
type row struct {
	Cell     string `json:"cell"`
	System   string `json:"system"`
	Settings string `json:"settings"`
	// Case is what differs from other rows of the cell: a number of processes, a payload, a rate.
	Case string `json:"case,omitempty"`
	// Failed says why the row has no numbers, or not all of its runs.
	Failed string `json:"failed,omitempty"`
	// Slow is true when it did not finish in time. Its numbers are those until then.
	Slow bool `json:"slow,omitempty"`
	// Peer is true for another system. The program does not fail when one fails.
	Peer   bool      `json:"peer,omitempty"`
	Runs   []measure `json:"runs,omitempty"`
	Median measure   `json:"median,omitempty"`
	Low    measure   `json:"low,omitempty"`
	High   measure   `json:"high,omitempty"`
}

// summarize fills in the median and the spread of the runs.
func (r *row) summarize() {
	r.Median, r.Low, r.High = measure{}, measure{}, measure{}
	values := map[metric][]float64{}
	for _, run := range r.Runs {
		for m, v := range run {
			values[m] = append(values[m], v)
		}
	}
	for m := range maps.Keys(values) {
		v := values[m]
		slices.Sort(v)
		r.Median[m], r.Low[m], r.High[m] = (v[(len(v)-1)/2]+v[len(v)/2])/2, v[0], v[len(v)-1]
	}
}

// to is a metric's ratio to another row: the median of those of each round, or the medians' where a run
// is missing.
func (r *row) to(other *row, m metric) float64 {
	if len(r.Runs) != len(other.Runs) {
		return r.Median[m] / other.Median[m]
	}
	rounds := &row{}
	for i, run := range r.Runs {
		rounds.Runs = append(rounds.Runs, measure{m: run[m] / other.Runs[i][m]})
	}
	rounds.summarize()
	return rounds.Median[m]
}

// results is all that a run of the benchmark has found.
type results struct {
	Began      string            `json:"began"`
	Took       string            `json:"took"`
	Machine    string            `json:"machine"`
	PostgreSQL string            `json:"postgresql"`
	Settings   map[string]string `json:"settings"`
	Peers      map[string]string `json:"peers"`
	Notes      []string          `json:"notes,omitempty"`
	Rows       []*row            `json:"rows"`
	Acceptance []verdict         `json:"acceptance"`
}

// find returns the row whose case ends so, or nil when it is missing or failed.
func (r *results) find(cell, system, caseEnd string) *row {
	for _, row := range r.Rows {
		if row.Cell == cell && row.System == system && strings.HasSuffix(row.Case, caseEnd) && len(row.Runs) > 0 && row.Failed == "" {
			return row
		}
	}
	return nil
}

// percentile of sorted values, by the nearest rank.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(p*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}
