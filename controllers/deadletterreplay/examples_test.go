package deadletterreplay

import (
	"slices"
	"testing"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-101
func TestExamplesOnThePage(t *testing.T) {
	replay := &api.DeadLetterReplay{}
	done := observed{replay: replay, left: &report.Replay{Matched: 212, Delivered: 211, Skipped: []report.Skipped{{Reason: "not_dead", Count: 1}}}}
	stopped := observed{replay: replay, left: &report.Replay{Matched: 1501, Delivered: 4, DiedAgain: 6, Stopped: "6 of 10 events died again, which is 50 % or more",
		Skipped: []report.Skipped{{Reason: "stopped", Count: 1491}}}}
	waits := observed{replay: replay, problem: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonOperatorLoginMissing,
		"OutboxDispatcher warehouse: spec.database.operator is not set, so there is no login that may replay or discard; make one with `dispatcher migrate grants --for operator`, and name its Secret there.")}
	fails := observed{replay: replay, said: &report.Status{
		Source: report.Link{State: report.Unreachable, Reason: api.ReasonConnectionFailed,
			Message: `Database "shop" at db:5432 as user "replays": connection refused; check that the server runs, host and port, and network policies.`},
		Schema: report.Schema{State: "TooOld", Message: `Schema "outbox" has version 1, and this dispatcher needs 2; run "dispatcher migrate up" of this version.`}}}
	operatortest.CheckExamples(t, "deadletterreplay.md", slices.Concat(conditions(done), conditions(stopped), conditions(waits), conditions(fails))...)
}
