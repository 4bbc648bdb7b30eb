package outboxdispatcher

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// CONTRACT: C-43
func TestTransitions(t *testing.T) {
	status := func(change func(*observed), dead *int64) (s api.OutboxDispatcherStatus) {
		o := well()
		change(&o)
		setConditions(&s.Conditions, 1, conditions(o))
		s.Dead = dead
		return s
	}
	fine := func(*observed) {}
	down := func(reason string) func(*observed) {
		return func(o *observed) { o.answers[0].Source = report.Link{State: report.Unreachable, Reason: reason} }
	}
	for name, c := range map[string]struct {
		before, after api.OutboxDispatcherStatus
		want          string
	}{
		"new and well":      {api.OutboxDispatcherStatus{}, status(fine, nil), "Normal/Delivering"},
		"new and migrating": {api.OutboxDispatcherStatus{}, status(func(o *observed) { noDeployment(o); o.migration.state = migrationRunning }, nil), "Normal/Migrating Normal/Progressing"},
		"nothing changed":   {status(fine, ptr.To[int64](3)), status(fine, ptr.To[int64](3)), ""},
		"database down":     {status(fine, nil), status(down("x"), nil), "Warning/ConnectionFailed"},
		"another reason":    {status(down("x"), nil), status(down(api.ReasonAuthenticationFailed), nil), "Warning/AuthenticationFailed"},
		"database back":     {status(down("x"), nil), status(fine, nil), "Normal/Connected Normal/Delivering"},
		"not observed":      {status(fine, nil), status(func(o *observed) { o.answers = nil }, nil), ""},
		"topics held": {status(fine, nil), status(func(o *observed) {
			o.answers[0].Held = []report.HeldTopic{{Topic: "a", Link: report.Link{Message: "x"}}}
		}, nil), "Warning/TopicsHeld"},
		"vacuum held back":     {status(fine, nil), status(oldest(report.Session, 1e6), nil), "Warning/OldTransaction"},
		"by something else":    {status(oldest(report.Session, 1e6), nil), status(oldest(report.Standby, 1e6), nil), "Warning/StandbyFeedback"},
		"vacuum goes on":       {status(oldest(report.Session, 1e6), nil), status(fine, nil), "Normal/NotHeldBack"},
		"first death":          {status(fine, ptr.To[int64](0)), status(fine, ptr.To[int64](1)), "Warning/DeadLetters"},
		"another death":        {status(fine, ptr.To[int64](1)), status(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"dead when first seen": {status(fine, nil), status(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"replayed":             {status(fine, ptr.To[int64](2)), status(fine, ptr.To[int64](1)), ""},
		"paused":               {status(fine, nil), status(func(o *observed) { o.obd.Spec.State = api.StatePaused }, nil), "Normal/Paused"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			seen := map[string]bool{}
			for _, e := range transitions(c.before, c.after) {
				got = append(got, e.kind+"/"+e.reason)
				if e.action == "" || e.note == "" || len(e.note) > 1024 {
					t.Errorf("event %+v lacks an action or a note, or is too long for the API", e)
				}
				if seen[e.action] {
					t.Errorf("two events of one pass have the action %s", e.action)
				}
				seen[e.action] = true
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("events %v, want %s", got, c.want)
			}
		})
	}
}
