package deadletterreplay

import (
	"slices"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-101
func TestExamplesOnThePage(t *testing.T) {
	replay := &api.DeadLetterReplay{}
	done := observed{replay: replay, left: &status.Replay{Progress: status.Progress{Matched: 212, Delivered: 211, Skipped: []status.Skipped{{Reason: "not_dead", Count: 1}}}}}
	stopped := observed{replay: replay, left: &status.Replay{LastError: "http://billing/events responded 422", Progress: status.Progress{
		Matched: 1501, Delivered: 4, DeadAgain: 6, Stopped: "6 of the newest 10 outcomes are failures, which is 50 % or more", Skipped: []status.Skipped{{Reason: "stopped", Count: 1491}}}}}
	waits := observed{replay: replay, problem: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonReplayLoginMissing,
		"Outbox orders: spec.replayLogin is not set, so there is no login that may replay or discard; make one with `dispatcher migrate grants --for replay`, and name its Secret there.")}
	fails := observed{replay: replay, podStatus: &status.Status{
		Source: status.Link{State: status.Unreachable, Reason: api.ReasonConnectionFailed,
			Message: `Database "shop" at db:5432 as user "replays": connection refused; check that the server runs, host and port, and network policies.`},
		Schema: status.Schema{State: "TooOld", Message: `Schema "outbox" has version 1, and this dispatcher needs 2; run "dispatcher migrate up" of this version.`}}}
	operatortest.CheckExamples(t, "deadletterreplay.md", slices.Concat(conditions(done), conditions(stopped), conditions(waits), conditions(fails))...)
}
