// Package kstatus writes conditions as kstatus reads them, once if anything changed, and records the changes as
// Events.
package kstatus

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// holder is the field of the status with the operator that holds the object.
func holder(o client.Object) *string {
	operator, _, _ := statusOf(o)
	return operator
}

// statusOf are the fields of the status that all kinds have, and the type of the main condition.
func statusOf(o client.Object) (operator *string, conditions *[]metav1.Condition, main string) {
	switch o := o.(type) {
	case *v1alpha1.Outbox:
		return &o.Status.Operator, &o.Status.Conditions, v1alpha1.ReadyCondition
	case *v1alpha1.DeadLetterReplay:
		return &o.Status.Operator, &o.Status.Conditions, v1alpha1.CompleteCondition
	case *v1alpha1.OutboxConsumer:
		return &o.Status.Operator, &o.Status.Conditions, v1alpha1.ReadyCondition
	}
	status := &o.(*v1alpha1.OutboxDispatcher).Status
	return &status.Operator, &status.Conditions, v1alpha1.ReadyCondition
}

const (
	// claimAgain is when an object is looked at again whose claim met another change.
	claimAgain = time.Second
	// fullAgain is when an object of a namespace that is full is looked at again.
	fullAgain       = time.Minute
	actionReconcile = "Reconcile"
)

// Claim makes this operator the holder of an object that has none or whose holder is gone, and reports whether it is the
// holder: only the holder writes to the object and to what is made for it, and of two that claim it at once one becomes it.
// For an object of another operator it records an Event, and nothing else. When it is not the holder, again is when to look
// once more. The object is whole then. The status of an object of a namespace that is Full says so, and it
// is not held either: the cache does not have all that belongs to it. It returns an error when the API server does.
func (r *Reporter) Claim(ctx context.Context, o client.Object) (held bool, again time.Duration, err error) {
	held, again, err = r.claim(ctx, o)
	if held && o.GetDeletionTimestamp() == nil && !final(o) && r.Full != nil && r.Full(o.GetNamespace()) {
		return false, fullAgain, r.reportFull(ctx, o, fmt.Sprintf(
			"applies no change in namespace %s but of replicas and state, and pods that run continue, because the objects there with the label %s",
			o.GetNamespace(), desired.LabelManagedBy+"="+desired.Manager))
	}
	return held, again, err
}

func (r *Reporter) claim(ctx context.Context, o client.Object) (held bool, again time.Duration, err error) {
	now := holder(o)
	if *now == r.Operator {
		r.holds(o.GetUID())
		err := r.Whole(ctx, o)
		return err == nil, 0, client.IgnoreNotFound(err)
	}
	if *now != "" {
		left, err := r.left(ctx, o, *now)
		if err != nil || left > 0 {
			return false, left, err
		}
		ctrl.LoggerFrom(ctx).Info("The operator that held the object is gone, so this one takes it over", "operator", *now)
	}
	before := o.DeepCopyObject().(client.Object)
	*now = r.Operator
	if err := r.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		if apierrors.IsConflict(err) {
			return false, claimAgain, nil
		}
		return false, 0, client.IgnoreNotFound(err)
	}
	r.holds(o.GetUID())
	return true, 0, nil
}

// LeftOut writes the status of the object with the name and namespace of o, which the cache does not have, because its namespace
// is full, unless another operator holds it. It reads it into o. It returns an error when the API server does.
func (r *Reporter) LeftOut(ctx context.Context, o client.Object) error {
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return client.IgnoreNotFound(err)
	}
	if by := *holder(o); by != "" && by != r.Operator || o.GetDeletionTimestamp() != nil {
		return nil
	}
	return r.reportFull(ctx, o, fmt.Sprintf(
		"makes no changes for this object, and pods that run continue, because the objects of the operator's kinds in namespace %s", o.GetNamespace()))
}

// reportFull writes the conditions of an object of a namespace that is full: what the operator does, because of which objects.
func (r *Reporter) reportFull(ctx context.Context, o client.Object, does string) error {
	before := o.DeepCopyObject().(client.Object)
	if final(o) {
		return nil
	}
	_, conditions, main := statusOf(o)
	stalled := Condition(v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonNamespaceFull, fmt.Sprintf(
		"The operator %s take more than their share of its memory. Delete those that no dispatcher needs, or raise the operator's memory limit.", does))
	meta.RemoveStatusCondition(conditions, v1alpha1.ReconcilingCondition)
	for _, c := range []metav1.Condition{Condition(main, metav1.ConditionUnknown, stalled.Reason, stalled.Message), stalled} {
		c.ObservedGeneration = o.GetGeneration()
		meta.SetStatusCondition(conditions, c)
	}
	return r.Report(ctx, before, o, func() []Event {
		return []Event{{corev1.EventTypeWarning, stalled.Reason, actionReconcile, stalled.Message}}
	})
}

// final reports whether an object has come to its end, after which only its time to live counts.
func final(o client.Object) bool {
	_, conditions, _ := statusOf(o)
	return meta.IsStatusConditionTrue(*conditions, v1alpha1.CompleteCondition) || meta.IsStatusConditionTrue(*conditions, v1alpha1.FailedCondition)
}

// Whole reads an object from the API server of which the cache has only a part. It returns an error when the API server does.
func (r *Reporter) Whole(ctx context.Context, o client.Object) error {
	annotations := o.GetAnnotations()
	if annotations[desired.AnnotationPart] == "" {
		return nil
	}
	key := client.ObjectKeyFromObject(o)
	reflect.ValueOf(o).Elem().SetZero() // what is decoded into an object adds to it
	if err := r.Live.Get(ctx, key, o); err != nil {
		return fmt.Errorf("read %T %s: %w", o, key.Name, err)
	}
	o.SetAnnotations(annotations)
	return nil
}

// Disabled reports whether a person wants the operator to leave the object alone.
func Disabled(o client.Object) bool {
	return strings.EqualFold(o.GetAnnotations()[v1alpha1.AnnotationReconcile], v1alpha1.ReconcileDisabled)
}

// HandsOff is the condition of an object that is Disabled.
func HandsOff() metav1.Condition {
	return Condition(v1alpha1.ReconcilingCondition, metav1.ConditionFalse, v1alpha1.ReasonReconcileDisabled, fmt.Sprintf(
		"The annotation %s is %s: the operator changes nothing that it has made, and applies no edit, not even of replicas or state. Remove the annotation, and it continues.",
		v1alpha1.AnnotationReconcile, v1alpha1.ReconcileDisabled))
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
	meta.RemoveStatusCondition(conditions, v1alpha1.StalledCondition)
	SetConditions(conditions, observed, append(*conditions, HandsOff()))
	return r.Report(ctx, before, o, func() []Event { return Transitions([]Watch{WatchReconciling}, was, *conditions) })
}

// WatchReconciling records that an object is Disabled, and that it is not any more.
var WatchReconciling = Watch{Condition: v1alpha1.ReconcilingCondition, Action: actionReconcile}

// Edited lets pass what a person changes of an object: its spec, its labels and annotations, and its holder.
func Edited() predicate.Predicate {
	return predicate.Or(
		predicate.GenerationChangedPredicate{},
		predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return *holder(e.ObjectOld) != *holder(e.ObjectNew) }},
	)
}

// Condition is one whose message is a sentence.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: problem.Sentence(message)}
}

// SetConditions replaces the conditions, also those that another version of the operator has left; one that stays as it was
// keeps its time of transition. Those that are [v1alpha1.AtRest] are left out. It returns all, which Events need.
func SetConditions(conditions *[]metav1.Condition, generation int64, all []metav1.Condition) []metav1.Condition {
	now := slices.DeleteFunc(slices.Clone(all), v1alpha1.AtRest)
	*conditions = slices.DeleteFunc(*conditions, func(c metav1.Condition) bool { return meta.FindStatusCondition(now, c.Type) == nil })
	for _, c := range now {
		c.ObservedGeneration = max(generation, 0)
		meta.SetStatusCondition(conditions, c)
	}
	return all
}

// SetFailure says that a pass could not be finished, which is the operator's trouble and not the
// object's: what is known of the object stays, and is returned. The main condition, Ready or Complete, is always there.
func SetFailure(conditions *[]metav1.Condition, generation int64, main string, failure error) []metav1.Condition {
	meta.RemoveStatusCondition(conditions, v1alpha1.StalledCondition)
	message := problem.Sentence("the operator could not finish, and tries again: " + failure.Error())
	if meta.FindStatusCondition(*conditions, main) == nil {
		meta.SetStatusCondition(conditions, metav1.Condition{Type: main, Status: metav1.ConditionUnknown,
			Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
	}
	meta.SetStatusCondition(conditions, metav1.Condition{Type: v1alpha1.ReconcilingCondition, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
	return *conditions
}
