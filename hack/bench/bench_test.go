package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The benchmark starts its own program as worker processes: here, that is the test.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == workerFlag {
		main()
	}
	os.Exit(m.Run())
}

// Every system starts in every cell, and delivers what was inserted, once.
func TestQuickRunDeliversInEveryCell(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes")
	}
	out := t.TempDir()
	o, err := parse([]string{"-quick", "-out", out})
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, row := range r.Rows {
		seen[row.Cell] = true
		if len(row.Runs) == 0 {
			t.Errorf("%s, %s, %s has no run", row.Cell, row.System, row.Case)
		}
	}
	for _, c := range cells {
		leftOut := slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, "The cell "+c.name+" is left out") })
		if !seen[c.name] && !leftOut { // some need Java
			t.Errorf("cell %s has no row", c.name)
		}
	}
}

func TestParseReadsArguments(t *testing.T) {
	for _, args := range [][]string{{"-cells", "drain,nothing"}, {"-runs", "0"}, {"-sinks", "nothing"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	o, err := parse([]string{"-cells", "idle,drain", "-runs", "5", "-full", "-sinks", "rabbit"})
	if err != nil || len(o.cells) != 2 || len(destinations(o.sinks)) != 2 || o.cells[0].name != "idle" || o.runs != 5 || o.size.pace != full.pace {
		t.Errorf("got %+v, %v", o, err)
	}
}

// A cell more makes a run longer, and the pages say so.
func TestPagesSayHowLongARunTakes(t *testing.T) {
	sum := 0.0
	for _, c := range cells {
		sum += c.minutes
	}
	want := fmt.Sprintf("about %.0f minutes", 10*math.Round(sum/10))
	for _, file := range []string{"main.go", "README.md", "../../Makefile", "../../.github/CONTRIBUTING.md"} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %q, which the cells add up to: %v", file, want, err)
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	values := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[float64]float64{0.5: 5, 0.95: 10, 0.9: 9, 0.99: 10, 0: 1, 1: 10} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
}

func TestMatchPairsCommitsWithDeliveries(t *testing.T) {
	p := pace{rate: 1, time: time.Second} // three events, of which the last is counted
	committed := []stamp{{0, 0}, {1, 1e9}, {2, 2e9}}
	waits, err := match(committed, []stamp{{2, 2_005_000_000}, {0, 9e9}, {1, 9e9}}, p)
	if err != nil || len(waits) != 1 || waits[2] != 5 {
		t.Errorf("got %v, %v", waits, err)
	}
	for name, handled := range map[string][]stamp{
		"lost":            {{0, 1}, {1, 1}},
		"delivered twice": {{0, 1}, {1, 1}, {2, 1}, {2, 2}},
	} {
		if _, err := match(committed, handled, p); err == nil {
			t.Errorf("an event was %s, and nothing is wrong", name)
		}
	}
}

func TestPayloadHasItsSizeAndNumber(t *testing.T) {
	for _, size := range []int{200, 1 << 10, 1 << 20} {
		p := payload(123456, size)
		if n, err := number(p); err != nil || n != 123456 || len(p) != size {
			t.Errorf("the payload of %d bytes has %d, number %d, %v", size, len(p), n, err)
		}
	}
}

// A criterion is not met by rows that failed or are not there.
func TestJudgeFailsRowsThatAreMissing(t *testing.T) {
	r := &results{}
	add := func(system string, rate float64, failed string) {
		row := &row{Cell: "drain", System: system, Case: caseOne, Failed: failed, Runs: []measure{{perSecond: rate}}}
		row.summarize()
		r.Rows = append(r.Rows, row)
	}
	state := func() string { return judge(r)[0].State }
	if state() != "not measured" {
		t.Errorf("without rows it is %s", state())
	}
	add(oursKept().Name, 100, "")
	add("River", 25, "")
	if state() != "met" {
		t.Errorf("100 to 25 is %s", state())
	}
	ours, river := r.Rows[0], r.Rows[1]
	ours.Runs, river.Runs = []measure{{perSecond: 100}, {perSecond: 50}, {perSecond: 80}}, []measure{{perSecond: 25}, {perSecond: 12}, {perSecond: 21}}
	ours.summarize()
	river.summarize()
	if state() != "met" { // though 80 is not four times 21
		t.Errorf("better in two rounds of three is %s", state())
	}
	river.Runs[0][perSecond] = 26
	if state() != "NOT met" {
		t.Errorf("better in one round of three is %s", state())
	}
	river.Runs = river.Runs[:2]
	if river.summarize(); state() != "met" { // 80 to 19
		t.Errorf("with a run missing it is %s", state())
	}
	r.Rows[0].Failed = "an event was lost"
	if state() != "not measured" {
		t.Errorf("with a failed row it is %s", state())
	}
}

// The three criteria next to Debezium, where one more in one cell is better and in the next one is worse.
func TestJudgeComparesWithDebezium(t *testing.T) {
	rows := func(ours, theirs measure) *results {
		r := &results{}
		for system, m := range map[string]measure{binaryDefault: ours, debeziumTuned: theirs} {
			for _, c := range []string{"500/s", caseWarmDrain} {
				row := &row{Cell: "debezium", System: system, Case: c, Runs: []measure{m}}
				row.summarize()
				r.Rows = append(r.Rows, row)
			}
		}
		return r
	}
	states := func(r *results) (all []string) {
		for _, v := range judge(r) {
			if strings.HasPrefix(v.Item, "Next to Debezium") {
				all = append(all, v.State)
			}
		}
		return all
	}
	theirs := measure{p50: 5, p99: 50, brokerCPU: 40, perSecond: 100}
	for _, c := range []struct {
		ours measure
		want []string
	}{
		{measure{p50: 4, p99: 49, brokerCPU: 40, perSecond: 150}, []string{"met", "met", "met"}},
		{measure{p50: 4, p99: 51, brokerCPU: 41, perSecond: 149}, []string{"NOT met", "NOT met", "NOT met"}},
		{measure{p50: 6, p99: 49, brokerCPU: 39, perSecond: 151}, []string{"NOT met", "met", "met"}},
	} {
		if got := states(rows(c.ours, theirs)); !slices.Equal(got, c.want) {
			t.Errorf("%v next to %v is %q, want %q", c.ours, theirs, got, c.want)
		}
	}
}

func TestPlotsEscapeNames(t *testing.T) {
	r := &results{}
	for _, system := range []string{"ours, <kept>", "River"} {
		for _, cell := range []string{"drain", "latency"} {
			row := &row{Cell: cell, System: system, Case: caseOne, Runs: []measure{
				{perSecond: 1000, p50: 1, p95: 2, p99: 3}, {perSecond: 1200, p50: 1, p95: 2, p99: float64(len(system) * len(system))},
			}}
			row.summarize()
			r.Rows = append(r.Rows, row)
		}
	}
	files := plots(r)
	for _, name := range []string{"throughput.svg", "latency.svg"} {
		text := files[name]
		if !strings.Contains(text, "ours, &lt;kept&gt;") {
			t.Errorf("%s does not name the system", name)
		}
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if got := plots(&results{}); len(got) != 0 {
		t.Errorf("without rows there are %d plots", len(got))
	}
}
