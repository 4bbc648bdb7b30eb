package kstatus

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// holder is the field of the status with the operator that holds the object.
func holder(o client.Object) *string {
	switch o := o.(type) {
	case *api.Outbox:
		return &o.Status.Operator
	case *api.DeadLetterReplay:
		return &o.Status.Operator
	case *api.OutboxConsumer:
		return &o.Status.Operator
	}
	return &o.(*api.OutboxDispatcher).Status.Operator
}

// An object that another operator holds is looked at again after this time, and one whose claim met another
// change after the shorter one.
const (
	lookAtHeld      = 30 * time.Minute
	claimAgain      = time.Second
	actionReconcile = "Reconcile"
)

// Claim makes this operator the holder of an object that has none, and reports whether it is the holder: only the holder
// writes to the object and to what is made for it, and of two that claim it at once one becomes it. For an object of another
// operator it records an Event, and nothing else. When it is not the holder, again is when to look once more. It returns an
// error when the API server does.
func (r *Reporter) Claim(ctx context.Context, o client.Object) (held bool, again time.Duration, err error) {
	switch now := holder(o); *now {
	case r.Operator:
		return true, 0, nil
	case "":
		before := o.DeepCopyObject().(client.Object)
		*now = r.Operator
		err := r.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			return false, claimAgain, nil
		}
		return err == nil, 0, client.IgnoreNotFound(err)
	default:
		if r.saysHeld(o.GetUID(), time.Now()) {
			r.Record(ctx, o, nil, Event{corev1.EventTypeWarning, api.ReasonManagedByAnotherOperator, actionReconcile, fmt.Sprintf(
				"The operator of namespace %q manages this object (status.operator), so that of namespace %q leaves it alone. Let one of them ignore this namespace (ignoreNamespaces). "+
					"When the first is gone, set status.operator to null: `kubectl patch ... --subresource=status --type=merge -p '{\"status\":{\"operator\":null}}'`.", *now, r.Operator)})
		}
		return false, lookAtHeld, nil
	}
}

// saysHeld reports whether no Event said lately that another operator holds the object.
func (r *Reporter) saysHeld(uid types.UID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.held, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= lookAtHeld })
	if _, said := r.held[uid]; said {
		return false
	}
	if r.held == nil {
		r.held = map[types.UID]time.Time{}
	}
	r.held[uid] = now
	return true
}

// Disabled reports whether a person wants the operator to leave the object alone.
func Disabled(o client.Object) bool {
	return strings.EqualFold(o.GetAnnotations()[api.AnnotationReconcile], api.ReconcileDisabled)
}

// HandsOff is the condition of an object that is Disabled.
func HandsOff() metav1.Condition {
	return Condition(api.ReconcilingCondition, metav1.ConditionFalse, api.ReasonReconcileDisabled, fmt.Sprintf(
		"The annotation %s is %s: the operator changes nothing that it has made, and applies no edit, not even of replicas or state. Remove the annotation, and it continues.",
		api.AnnotationReconcile, api.ReconcileDisabled))
}

// Observed is the generation that a status is about: that of an object that is Disabled stays the one that was applied
// last, so that tools see that an edit waits.
func Observed(o client.Object, before int64) int64 {
	if Disabled(o) {
		return before
	}
	return o.GetGeneration()
}

// Disable writes the condition [HandsOff], and leaves the rest of the status as it was. It returns an error when the API
// server does.
func (r *Reporter) Disable(ctx context.Context, o client.Object, conditions *[]metav1.Condition, observed int64) error {
	before := o.DeepCopyObject().(client.Object)
	was := append([]metav1.Condition(nil), *conditions...)
	SetConditions(conditions, observed, []metav1.Condition{HandsOff()})
	return r.Report(ctx, before, o, func() []Event { return Transitions([]Watch{WatchReconciling}, was, *conditions) })
}

// WatchReconciling records that an object is Disabled, and that it is not any more.
var WatchReconciling = Watch{Condition: api.ReconcilingCondition, Action: actionReconcile}

// Edited lets pass what a person changes of an object: its spec, its labels and annotations, and its holder.
func Edited() predicate.Predicate {
	return predicate.Or(
		predicate.GenerationChangedPredicate{},
		predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return *holder(e.ObjectOld) != *holder(e.ObjectNew) }},
	)
}
