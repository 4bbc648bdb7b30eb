package main

import (
	"os"
	"testing"
	"time"
)

// TestMain lets the runs start this test program as their producers and consumers.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Two short runs of the whole. `go run ./hack/chaos -help` says how to have longer ones. How long
// recovery takes decides nothing here: the machine may be busy.
// CONTRACT: C-3, C-10, C-20, C-21, C-22, C-23, C-24, C-26, C-27, C-30, C-31, C-32, C-70
func TestShortRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute and a half")
	}
	o := defaults()
	o.strict, o.verbose, o.binaries = false, true, t.TempDir()
	if err := build(t.Context(), o.binaries); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name             string
		seed             uint64
		ordered, deleted bool
	}{
		{"RowsKept", 3, false, false},
		{"KeyOrderRowsDeleted", 5, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.seed, o.ordered, o.deleted, o.total = test.seed, test.ordered, test.deleted, 35*time.Second
			r, err := run(t.Context(), o, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			r.print(t.Output())
			if r.failed() {
				t.Error("see above")
			}
			if len(r.history.faults) == 0 || r.ledger.delivered == 0 {
				t.Errorf("%d faults, %d delivered: nothing was tried", len(r.history.faults), r.ledger.delivered)
			}
		})
	}
}
