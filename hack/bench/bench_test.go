package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The benchmark starts its own program as worker processes: here, that is the test.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == workerFlag {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every system starts in every cell, and delivers what was inserted, once.
func TestQuickRunDeliversInEveryCell(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	o, err := parse([]string{"-quick", "-out", t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	b, err := run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	measured := strings.Join(b.notes, "\n") // without Java the cell kafka is left out
	for _, r := range b.rows {
		measured += "The cell " + r.cell + " has " + r.system
		if len(r.runs) != 1 {
			t.Errorf("%s, %s, %s has %d runs", r.cell, r.system, r.which, len(r.runs))
		}
	}
	for _, c := range cells {
		if !strings.Contains(measured, "The cell "+c.name) {
			t.Errorf("cell %s has no row", c.name)
		}
	}
}

func TestMatchFailsForLostAndDoubledEvents(t *testing.T) {
	committed := []time.Time{time.Unix(0, 1), time.Unix(1, 0), time.Unix(2, 0)}
	waits, err := match(committed, report{Handled: 3, Stamps: []int64{9e9, 9e9, 2_005_000_000}}, 2)
	if err != nil || len(waits) != 1 || waits[0] != 5 {
		t.Errorf("got %v, %v", waits, err)
	}
	for name, r := range map[string]report{
		"lost":            {Handled: 2, Stamps: []int64{1, 1, 0}},
		"delivered twice": {Handled: 4, Stamps: []int64{1, 1, 1}},
	} {
		if _, err := match(committed, r, 0); err == nil {
			t.Errorf("an event was %s, and nothing is wrong", name)
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	m := measure{}
	m.waits([]float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1})
	if m[p50] != 5 || m[p95] != 10 || m[p99] != 10 || m[longest] != 10 {
		t.Errorf("got %v", m)
	}
}
