package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// TestMain lets the runs start this test program as their producers and consumers. It builds the dispatchers
// for TestShortRunsKeepTheLedger before the tests' time begins: without a cache that takes minutes.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	flag.Parse()
	os.Exit(testAll(m))
}

func testAll(m *testing.M) int {
	if testing.Short() || !named("TestShortRunsKeepTheLedger") {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "outbox-chaos-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = build(context.Background(), dir, shortRuns.kinds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	shortRuns.binaries = dir
	return m.Run()
}

// named reports whether the command names a test.
func named(name string) bool {
	run, skip := flag.Lookup("test.run").Value.String(), flag.Lookup("test.skip").Value.String()
	runs, err := regexp.MatchString(strings.SplitN(run, "/", 2)[0], name)
	if skip == "" {
		return runs && err == nil
	}
	skips, _ := regexp.MatchString(skip, name)
	return runs && !skips
}

// shortRuns are the options of TestShortRunsKeepTheLedger. How long recovery takes decides nothing there: the machine may be
// busy.
var shortRuns = func() options {
	o := defaults()
	o.total, o.crowded, o.verbose = 45*time.Second, true, true
	o.kinds = slices.DeleteFunc(o.kinds, func(k kind) bool { return k == loop }) // it takes longer
	return o
}()

var shortSeeds = []struct {
	name                    string
	seed                    uint64
	ordered, deleted, paced bool
	copies                  int
}{
	{"RowsKeptPaceFound", 48, false, false, true, 0},
	{"KeyOrderRowsDeleted", 186, true, true, false, 0},
	{"CopiesKeyOrder", 7, true, false, false, 3},
}

// Short runs of the whole. `go run ./hack/chaos -help` says how to have longer ones.
// CONTRACT: C-3, C-10, C-17, C-18, C-19, C-20, C-21, C-22, C-23, C-24, C-26, C-27, C-30, C-31, C-32, C-33, C-36, C-41, C-42, C-70
func TestShortRunsKeepTheLedger(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute and a half")
	}
	for _, test := range shortSeeds {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := shortRuns
			o.seed, o.ordered, o.deleted, o.paced = test.seed, test.ordered, test.deleted, test.paced
			o.copies, o.rate = test.copies, o.rate/(1+test.copies)
			r, err := run(t.Context(), o, t.Output())
			need.OK(t, err)
			r.print(t.Output())
			if r.failed() {
				t.Error("see above")
			}
			if len(r.history.faults) == 0 || r.ledger.delivered == 0 || r.ledger.withdrawn == 0 {
				t.Errorf("%d faults, %d delivered, %d withdrawn: nothing was tried", len(r.history.faults), r.ledger.delivered, r.ledger.withdrawn)
			}
		})
	}
}

func draw(seed uint64, total time.Duration, kinds []kind) []fault {
	t := defaults().times
	t.total = total
	return schedule(rand.New(rand.NewPCG(seed, 3)), t, 3, kinds)
}

// A seed can be replayed, and a long run has every fault.
func TestScheduleIsReproducible(t *testing.T) {
	all := defaults().kinds
	need.WantAll(t, draw(7, time.Minute, all), "one seed gave two schedules", draw(7, time.Minute, all))
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
		need.That(t, counts[k] >= 3, "%d × %s in 30 minutes: too few", counts[k], k)
	}
	need.That(t, held >= 10*time.Minute, "the longest late commit comes after %s, want 10 minutes", held)
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

// The two short runs without copies have every kind of fault between them.
func TestShortRunsHaveEveryFault(t *testing.T) {
	have := map[kind]bool{}
	for _, run := range shortSeeds[:2] {
		for _, f := range schedule(rand.New(rand.NewPCG(run.seed, 3)), shortRuns.times, shortRuns.dispatchers, shortRuns.kinds) {
			have[f.kind] = true
		}
	}
	for _, k := range shortRuns.kinds {
		need.That(t, have[k], "none of them has %s", k)
	}
}
