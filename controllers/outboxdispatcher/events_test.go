package outboxdispatcher

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
)

// While rows become dead there is one event in ten minutes, for each OutboxDispatcher.
func TestDeadLettersHaveOneEventInTenMinutes(t *testing.T) {
	var w warned
	a, b, began := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}, time.Unix(0, 0)
	events := func(obd types.NamespacedName, after time.Duration) int {
		dead := transitions(api.OutboxDispatcherStatus{}, api.OutboxDispatcherStatus{Dead: ptr.To[int64](1)})
		return len(w.seldom(obd, append(dead, kstatus.Event{Action: "Deliver"}), began.Add(after)))
	}
	for i, step := range []struct {
		obd   types.NamespacedName
		after time.Duration
		want  int
	}{{a, 0, 2}, {a, time.Second, 1}, {b, time.Second, 2}, {a, 10*time.Minute - 1, 1}, {a, 10 * time.Minute, 2}, {a, 11 * time.Minute, 1}} {
		if got := events(step.obd, step.after); got != step.want {
			t.Errorf("step %d: %d events, want %d", i, got, step.want)
		}
	}
	w.forget(a)
	if got := events(a, 11*time.Minute); got != 2 {
		t.Errorf("made again: %d events, want 2", got)
	}
}

// CONTRACT: C-43
func TestTransitionsAreRecordedAsEvents(t *testing.T) {
	current := func(change func(*observed), dead *int64) (s api.OutboxDispatcherStatus) {
		o := well()
		change(&o)
		kstatus.SetConditions(&s.Conditions, 1, conditions(o))
		s.Dead = dead
		return s
	}
	fine := func(*observed) {}
	down := func(reason string) func(*observed) {
		return func(o *observed) { o.statuses[0].Source = status.Link{State: status.Unreachable, Reason: reason} }
	}
	for name, c := range map[string]struct {
		before, after api.OutboxDispatcherStatus
		want          string
	}{
		"new and well":      {api.OutboxDispatcherStatus{}, current(fine, nil), "Normal/Delivering"},
		"new and migrating": {api.OutboxDispatcherStatus{}, current(func(o *observed) { noDeployment(o); o.migration.State = migrate.Running }, nil), "Normal/Migrating Normal/Progressing"},
		"nothing changed":   {current(fine, ptr.To[int64](3)), current(fine, ptr.To[int64](3)), ""},
		"database down":     {current(fine, nil), current(down("x"), nil), "Warning/ConnectionFailed"},
		"another reason":    {current(down("x"), nil), current(down(api.ReasonAuthenticationFailed), nil), "Warning/AuthenticationFailed"},
		"database back":     {current(down("x"), nil), current(fine, nil), "Normal/Connected Normal/Delivering"},
		"not observed":      {current(fine, nil), current(func(o *observed) { o.statuses = nil }, nil), ""},
		"topics paused": {current(fine, nil), current(func(o *observed) {
			o.statuses[0].PausedTopics = []status.PausedTopic{{Topic: "a", Link: status.Link{Message: "x"}}}
		}, nil), "Warning/TopicsPaused"},
		"vacuum held back":     {current(fine, nil), current(oldest(status.Session, 1e6), nil), "Warning/OldTransaction"},
		"by something else":    {current(oldest(status.Session, 1e6), nil), current(oldest(status.Standby, 1e6), nil), "Warning/StandbyFeedback"},
		"vacuum continues":     {current(oldest(status.Session, 1e6), nil), current(fine, nil), "Normal/NotHeldBack"},
		"first dead event":     {current(fine, ptr.To[int64](0)), current(fine, ptr.To[int64](1)), "Warning/DeadLetters"},
		"another dead event":   {current(fine, ptr.To[int64](1)), current(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"dead when first seen": {current(fine, nil), current(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"replayed":             {current(fine, ptr.To[int64](2)), current(fine, ptr.To[int64](1)), ""},
		"paused":               {current(fine, nil), current(func(o *observed) { o.obd.Spec.State = api.StatePaused }, nil), "Normal/Paused"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			seen := map[string]bool{}
			for _, e := range transitions(c.before, c.after) {
				got = append(got, e.Kind+"/"+e.Reason)
				if e.Action == "" || e.Note == "" || len(e.Note) > 1024 {
					t.Errorf("event %+v lacks an action or a note, or is too long for the API", e)
				}
				if seen[e.Action] {
					t.Errorf("two events of one pass have the action %s", e.Action)
				}
				seen[e.Action] = true
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("events %v, want %s", got, c.want)
			}
		})
	}
}
