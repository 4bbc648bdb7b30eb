package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func draw(seed uint64, total time.Duration, kinds []kind) []fault {
	t := defaults().times
	t.total = total
	return schedule(rand.New(rand.NewPCG(seed, 3)), t, 3, kinds)
}

// A seed can be replayed, and a long run has every fault.
func TestScheduleIsReproducible(t *testing.T) {
	all := defaults().kinds
	if !slices.Equal(draw(7, time.Minute, all), draw(7, time.Minute, all)) {
		t.Error("one seed gave two schedules")
	}
	if slices.Equal(draw(7, time.Minute, all), draw(8, time.Minute, all)) {
		t.Error("two seeds gave one schedule")
	}
	plan := draw(7, 30*time.Minute, all)
	counts := map[kind]int{}
	held := time.Duration(0)
	for i, f := range plan {
		counts[f.kind]++
		if f.kind == late {
			held = max(held, f.lasts)
		}
		if f.at+f.lasts > 30*time.Minute || i > 0 && f.at < plan[i-1].at {
			t.Errorf("fault %d is out of place: %+v", i, f)
		}
	}
	for _, k := range all {
		if counts[k] < 3 {
			t.Errorf("%d × %s in 30 minutes: too few", counts[k], k)
		}
	}
	if held < 10*time.Minute {
		t.Errorf("the longest late commit comes after %s, want 10 minutes", held)
	}
	for _, f := range plan {
		if f.kind == crash && f.at < 11*time.Minute && f.at > time.Minute {
			t.Errorf("a crash at %s ends the long transaction", f.at)
		}
	}
	for _, f := range draw(7, time.Minute, []kind{kill, late}) {
		if f.kind != kill && f.kind != late {
			t.Errorf("%s was not requested", f.kind)
		}
	}
}

// The two short runs have every kind of fault between them.
func TestShortRunsHaveEveryFault(t *testing.T) {
	have := map[kind]bool{}
	for _, run := range shortSeeds {
		for _, f := range schedule(rand.New(rand.NewPCG(run.seed, 3)), shortRuns.times, shortRuns.dispatchers, shortRuns.kinds) {
			have[f.kind] = true
		}
	}
	for _, k := range shortRuns.kinds {
		if !have[k] {
			t.Errorf("none of them has %s", k)
		}
	}
}
