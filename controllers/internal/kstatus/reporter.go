package kstatus

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Reporter writes statuses and records Events. All fields but the last four are required.
type Reporter struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server what is read seldom.
	Live client.Reader
	// Events records events of events.k8s.io.
	Events events.EventRecorder
	// Operator is this operator, by which others know that it holds an object. Empty for one that is in no cluster.
	Operator string
	// Leads says that the operator keeps the Lease by which others see that it is there. Without, it takes over nothing that
	// another holds.
	Leads bool
	// Full reports that a namespace has more objects with the operator's label than its share of the cache. Nil means that none
	// has.
	Full func(namespace string) bool
	// ReleasedLasts is how long a claim lasts after the Lease of its operator was released. Defaults to a minute.
	ReleasedLasts time.Duration

	mu         sync.Mutex
	held       map[types.UID]heldObject // objects of others
	leases     map[string]seenLease     // of operators that hold objects
	unreadable sync.Map                 // operators whose Lease this one may not read, as the log has said
}

// Report writes the status of after, if it differs from that of before, by one patch, and then records the events.
// Nothing else of the two may differ. It returns an error when the patch fails, unless the object does not exist any more.
func (r *Reporter) Report(ctx context.Context, before, after client.Object, events func() []Event) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Record(ctx, after, nil, events()...)
	return nil
}

// Record records events about an object, and about a related one, which may be nil. Kubernetes takes an event that is
// repeated with the same versions of both for a series.
func (r *Reporter) Record(ctx context.Context, about client.Object, related runtime.Object, events ...Event) {
	if len(events) == 0 || r.terminating(ctx, about.GetNamespace()) {
		return
	}
	for _, e := range events {
		r.Events.Eventf(about, related, e.Kind, e.Reason, e.Action, "%s", e.Note)
	}
}

// terminating reports whether a namespace is being deleted: then it takes no more events. Namespaces are read only when
// there is an event, and are not watched.
func (r *Reporter) terminating(ctx context.Context, name string) bool {
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, namespace); err != nil {
		return apierrors.IsNotFound(err) // else try to record it
	}
	return !namespace.DeletionTimestamp.IsZero()
}

// Event is one of events.k8s.io. Its reason is the condition's.
type Event struct{ Kind, Reason, Action, Note string }

// Watch says what the operator was doing when it saw a condition. Each condition has an action of its own: two events of
// one pass with the same reason and action would be taken for a series.
type Watch struct{ Condition, Action string }

// bad is the status that is worth an Event. Reconciling is False where an annotation has the operator leave the object.
func (w Watch) bad() metav1.ConditionStatus {
	if w.Condition == api.ReconcilingCondition {
		return metav1.ConditionFalse
	}
	return api.BadStatus(w.Condition)
}

// expected are reasons of False that every start goes through.
var expected = []string{api.ReasonProgressing, api.ReasonMigrating, api.ReasonScaledToZero, api.ReasonReconcileDisabled}

// despite are reasons of a True Ready whose trouble is the Event of another condition.
var despite = []string{api.ReasonDeliveringDespiteTrouble, api.ReasonInUseDespiteTrouble}

// Transitions are the events that a change of the conditions is worth: one that became bad or has
// another reason for it, one that is good again, and Ready (CONTRACT C-43).
func Transitions(watched []Watch, before, after []metav1.Condition) []Event {
	var events []Event
	for _, w := range watched {
		was, is := meta.FindStatusCondition(before, w.Condition), meta.FindStatusCondition(after, w.Condition)
		if is == nil || (was != nil && was.Status == is.Status && was.Reason == is.Reason) {
			continue
		}
		switch ready, bad := w.Condition == api.ReadyCondition, w.bad(); {
		case is.Status == bad && !ready: // its cause has an Event of its own
			kind := corev1.EventTypeWarning
			if slices.Contains(expected, is.Reason) {
				kind = corev1.EventTypeNormal
			}
			events = append(events, Event{kind, is.Reason, w.Action, is.Message})
		case is.Status != bad && is.Status != metav1.ConditionUnknown && (ready && !slices.Contains(despite, is.Reason) || was != nil && was.Status == bad):
			events = append(events, Event{corev1.EventTypeNormal, is.Reason, w.Action, is.Message})
		}
	}
	return events
}
