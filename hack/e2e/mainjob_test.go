package e2e

import (
	"context"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// CONTRACT: C-10 C-11 C-20 C-22 C-24 C-43 C-70 C-100
var _ = It("does the main job, as the demo shows it", Label("main"), func() {
	w := newWorld("main")
	w.manifests.Replicas = 2
	w.consumer.Work = 5 * time.Millisecond
	w.ready()
	w.consumer.Work = 20 * time.Millisecond // so that each pod holds events at any moment

	story := &scenario.Story{
		Stage: w.dispatcher, Shop: w.shop, AppDSN: w.shop.DSN(w.shop.App, "127.0.0.1", w.server.Port), ConsumerURL: "http://" + w.consumer.address,
		Plan: scenario.Plan{Orders: 24_000, Writers: 8, RollbackPercent: 10, ResendPercent: 5}, Out: os.Stdout,
	}
	ledger, err := story.Play(w.ctx)
	w.must(err)
	ledger.Print(os.Stdout)
	if err := ledger.Err(); err != nil {
		w.Errorf("%v\nlost: %v\nwithout a commit: %v\nwithout a cause: %v", err, ledger.Lost, ledger.Ghosts, ledger.Unexplained)
	}
	if ledger.Committed < 20_000 || ledger.RolledBack < 1000 || ledger.Resent < 500 {
		w.Errorf("the story was too small: %+v, want 20000 committed, 1000 rolled back, 500 resent", ledger)
	}
	if len(ledger.Dead) != 1 || ledger.Dead["max_retries_exceeded"] != 1 {
		w.Errorf("dead: %v, want the poisoned event alone", ledger.Dead)
	}
	if ledger.Held == 0 {
		w.Error("the killed pod held no events, want some")
	}
	w.Logf("the killed pod's rows were all delivered %.1f s after the kill; lease + poll is 7 s", ledger.HeldAgain.Seconds())

	// The poisoned event is visible in the column, a condition and an Event.
	w.expect("DeadLettersPresent", "True", "DeadLetters")
	soon, cancel := context.WithTimeout(w.ctx, time.Minute) // the columns are a few seconds behind
	defer cancel()
	w.must(scenario.Until(soon, "Pending 0 and Dead 1", func() (bool, string) {
		columns, err := w.dispatcher.Columns(soon)
		if err != nil {
			return false, err.Error()
		}
		row := strings.Fields(strings.Split(columns, "\n")[1])
		return row[3] == "0" && row[4] == "1", columns
	}))
	w.must(scenario.Until(w.ctx, "an Event with reason DeadLetters", func() (bool, string) {
		out, err := cluster.Run(w.ctx, "-n", w.manifests.Namespace, "get", "events", "--field-selector=reason=DeadLetters", "-o", "name")
		return err == nil && strings.Contains(out, "event"), out
	}))
})

// A clean stop releases all leases, so no event is delivered twice.
//
// CONTRACT: C-30
var _ = It("delivers each event once while pods are deleted under load", Label("main"), func() {
	w := newWorld("roll")
	w.manifests.Replicas = 2
	w.consumer.Work = 5 * time.Millisecond
	w.ready()
	produced := w.produce(10_000)
	_, err := cluster.Run(w.ctx, "-n", w.manifests.Namespace, "delete", "pods", "-l", "outbox.dev/component=dispatcher", "--wait=false")
	w.must(err)
	w.drained()
	ledger, err := scenario.Balance(w.ctx, w.shop.Admin, produced, w.consumer.Deliveries(), nil)
	w.must(err)
	w.must(ledger.Err())
	if ledger.Delivered != 10_000 || ledger.Duplicates != 0 {
		w.Errorf("%d delivered and %d duplicates, want 10000 and 0", ledger.Delivered, ledger.Duplicates)
	}
})
