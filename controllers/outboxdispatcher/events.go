package outboxdispatcher

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
)

// watched are the conditions whose changes are recorded as Events.
var watched = []kstatus.Watch{
	{Condition: api.ReferencesResolvedCondition, Action: "ResolveReferences"},
	{Condition: api.SchemaReadyCondition, Action: "Migrate"},
	{Condition: api.SourceReachableCondition, Action: "ObserveSource"},
	{Condition: api.SinkReachableCondition, Action: "ObserveSink"},
	{Condition: api.TopicsPausedCondition, Action: "ObserveTopics"},
	{Condition: api.VacuumHeldBackCondition, Action: "ObserveTransactions"},
	{Condition: api.DataHealthyCondition, Action: "ObserveData"},
	{Condition: api.TopicsSharedCondition, Action: "CompareTopics"},
	{Condition: api.TypesUnregisteredCondition, Action: "CompareTypes"},
	{Condition: api.ScalingLimitedCondition, Action: "Scale"},
	{Condition: api.WorkloadAvailableCondition, Action: "Deploy"},
	kstatus.WatchReconciling,
	{Condition: api.ReadyCondition, Action: "Deliver"},
}

const actionDeadLetters = "CountDeadLetters"

// transitions are the events that a change of the status is worth: those of the conditions, of which all has those at rest too,
// and rows that became dead (CONTRACT C-43).
func transitions(before, after api.OutboxDispatcherStatus, all []metav1.Condition) []kstatus.Event {
	events := kstatus.Transitions(watched, before.Conditions, all)
	if after.Counts != nil && after.Dead > ptr.Deref(before.Counts, status.Counts{}).Dead {
		events = append(events, kstatus.Event{Kind: corev1.EventTypeWarning, Reason: api.ReasonDeadLetters,
			Action: actionDeadLetters, Note: deadLettersNote(ptr.Deref(after.BlockedKeys, 0) > 0, after.DeadGroups)})
	}
	return events
}

// warnEvery is the time between two events about dead rows.
const warnEvery = 10 * time.Minute

// warned remembers when each OutboxDispatcher was last warned about dead rows. While an incident lasts they
// grow with each count: the column shows how, and one event in ten minutes is enough. After a restart it
// remembers nothing. Its zero value is ready.
type warned struct {
	mu sync.Mutex
	at map[types.NamespacedName]time.Time
}

// seldom leaves out the warning about dead rows when there was one a short while ago.
func (w *warned) seldom(obd types.NamespacedName, events []kstatus.Event, now time.Time) []kstatus.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(events, func(e kstatus.Event) bool {
		if e.Action != actionDeadLetters {
			return false
		}
		if last, ok := w.at[obd]; ok && now.Sub(last) < warnEvery {
			return true
		}
		if w.at == nil {
			w.at = map[types.NamespacedName]time.Time{}
		}
		w.at[obd] = now
		return false
	})
}

func (w *warned) forget(obd types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.at, obd)
}
