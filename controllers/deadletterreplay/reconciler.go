// Package deadletterreplay reconciles DeadLetterReplays: it runs one Job for each, and reports what its pod says.
//
// The set and the progress are rows of the database, under the object's UID. So the replay continues after its pod is
// killed, its Job is created again or the operator restarts, and the operator opens no database connection. While the Job
// runs, the operator reads the progress from its pod. The final result is the pod's termination message.
//
// SIGTERM ends a pod after its batch. When the object is deleted, its Job goes with it and nothing runs the replay any more: a
// minute later another one may claim the dead letters that waited, which are open. The row of the replay stays unfinished
// until retention gives it up.
package deadletterreplay

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/fairqueue"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Reconciler runs DeadLetterReplays and reports on them. All fields but OperatorNamespace are required.
type Reconciler struct {
	// Reporter has the clients and the Events, and says which operator this is.
	*kstatus.Reporter
	// Mounts has the Events about files of pods.
	Mounts pods.FailedMounts
	// Observer keeps what the pods say. It is this reconciler's own.
	Observer *observe.Observer
	// Platform is what all pods have in common.
	Platform desired.Platform
	// Interval is the time between two looks at a replay that is under way.
	Interval time.Duration
	// OperatorNamespace is where the operator's pods run, which a NetworkPolicy lets in. Empty means that none is made.
	OperatorNamespace string

	applied *apply.Applier
}

// What the manager may do for DeadLetterReplays, in addition to its rights for the other kinds.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=deadletterreplays,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=outbox.dev,resources=deadletterreplays/status,verbs=patch

// Reconcile does one pass. It returns an error when the API server does, or what a later pass may overcome.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	o := &v1alpha1.DeadLetterReplay{}
	if err := r.Client.Get(ctx, req.NamespacedName, o); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if held, again, err := r.Claim(ctx, o); !held {
		return ctrl.Result{RequeueAfter: again}, err
	}
	switch deleted := !o.DeletionTimestamp.IsZero(); {
	case kstatus.Disabled(o) && !deleted && finished(o):
		return ctrl.Result{}, nil // its end is final: its time to live alone waits
	case kstatus.Disabled(o) && !deleted:
		return ctrl.Result{}, r.Disable(ctx, o, &o.Status.Conditions, o.Status.ObservedGeneration)
	case finished(o):
		return r.cleanUp(ctx, o)
	case deleted:
		return ctrl.Result{}, nil // its Job goes with it, and a minute later others may claim what waits
	}
	before, seen := o.DeepCopy(), observed{replay: o}
	defer func() { err = errors.Join(err, r.report(ctx, before, seen, err)) }()
	if err := r.run(ctx, &seen); err != nil && !errors.As(err, &seen.problem) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.Interval}, nil
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.applied.Forget(key)
	r.Observer.Forget(key)
}

// finished reports whether the status says that the replay has come to its end, which is final.
func finished(o *v1alpha1.DeadLetterReplay) bool {
	return o.Status.Progress != nil && o.Status.FinishedAt != 0
}

// cleanUp deletes a finished replay when its time to live is over. It removes a Ready, which operators before this one could
// leave at Unknown for ever.
func (r *Reconciler) cleanUp(ctx context.Context, o *v1alpha1.DeadLetterReplay) (ctrl.Result, error) {
	r.Observer.Forget(client.ObjectKeyFromObject(o))
	before := o.DeepCopy()
	if meta.RemoveStatusCondition(&o.Status.Conditions, v1alpha1.ReadyCondition) {
		if err := r.Report(ctx, before, o, func() []kstatus.Event { return nil }); err != nil {
			return ctrl.Result{}, fmt.Errorf("remove the condition Ready of DeadLetterReplay %s: %w", o.Name, err)
		}
	}
	if !o.DeletionTimestamp.IsZero() || o.Spec.TTLAfterFinished == nil {
		return ctrl.Result{}, nil
	}
	if wait := time.Until(endedAt(o).Add(o.Spec.TTLAfterFinished.D())); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	err := r.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("delete the DeadLetterReplay, whose ttlAfterFinished is over: %w", err)
	}
	return ctrl.Result{}, nil
}

// endedAt is when the status first said that the replay has ended, on the operator's clock, by which the time to live is
// measured. FinishedAt is on the database's, or the kubelet's.
func endedAt(o *v1alpha1.DeadLetterReplay) (at time.Time) {
	for _, c := range o.Status.Conditions {
		ends := c.Type == v1alpha1.CompleteCondition || c.Type == v1alpha1.FailedCondition
		if ends && c.Status == metav1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if at.IsZero() {
		return o.Status.FinishedAt.Time()
	}
	return at
}

// run makes what the replay needs, once, and looks at it. A Job that is there stays as it is: its set is fixed. The Job of a
// replay that has failed is not made again when it is gone.
func (r *Reconciler) run(ctx context.Context, seen *observed) error {
	o := seen.replay
	if original := restored(o); original != "" {
		return problem.Stalling(v1alpha1.CompleteCondition, v1alpha1.ReasonRestored, fmt.Sprintf(
			"It was created from a copy of replay %s, whose dead letters are not replayed again: `dispatcher dead operations --operation %[1]s` has its outcome. Delete this object; to replay more, create one without the annotation %s.",
			original, desired.AnnotationReplay))
	}
	job, err := r.job(ctx, o, desired.ReplayName(o))
	if err != nil {
		return err
	}
	gone := job == nil || !metav1.IsControlledBy(job, o)
	if failed := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.FailedCondition); gone && failed != nil {
		seen.failed = failed.DeepCopy() // what the Job would begin again has been reported as failed
		return nil
	}
	if err := problem.Incomplete(v1alpha1.ReferencesResolvedCondition, "DeadLetterReplay", "", o.Spec); gone && err != nil {
		return err
	}
	resolved, err := r.resolve(ctx, o)
	if gone {
		if err == nil {
			job, err = r.begin(ctx, resolved)
		}
		if err != nil {
			return err
		}
	}
	seen.job = job
	return r.observePods(ctx, seen, resolved)
}

// restored is the UID of the replay that the object is a copy of, such as one from a backup. It is empty for an original.
func restored(o *v1alpha1.DeadLetterReplay) string {
	if began := o.Annotations[desired.AnnotationReplay]; began != string(o.UID) {
		return began
	}
	return ""
}

// begin marks the object as one that has begun, and makes the Job with its files.
func (r *Reconciler) begin(ctx context.Context, replay desired.Replay) (*batchv1.Job, error) {
	o := replay.DeadLetterReplay
	job, err := replay.Job(r.Platform)
	if errors.Is(err, desired.ErrPodTemplate) {
		return nil, problem.Stalling(v1alpha1.CompleteCondition, v1alpha1.ReasonInvalidPodTemplate, problem.Sentence(err.Error()))
	}
	if err != nil {
		return nil, err
	}
	if !o.Spec.DryRun && o.Annotations[desired.AnnotationReplay] == "" {
		marked := o.DeepCopy()
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, desired.AnnotationReplay, string(o.UID))
		if err := r.Client.Patch(ctx, marked, client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{})); err != nil {
			return nil, fmt.Errorf("annotate DeadLetterReplay %s, which begins: %w", o.Name, err)
		}
	}
	if err := r.applied.Apply(ctx, o, replay.ConfigMap(), &corev1.ConfigMap{}); err != nil {
		return nil, err
	}
	if r.OperatorNamespace != "" {
		if err := r.applied.Apply(ctx, o, replay.NetworkPolicy(r.OperatorNamespace), &networkingv1.NetworkPolicy{}); err != nil {
			return nil, err
		}
	}
	made := &batchv1.Job{}
	if err := r.applied.Apply(ctx, o, job, made); err != nil {
		return nil, err
	}
	return made, nil
}

// job is the one of the name, nil when there is none of the operator's.
func (r *Reconciler) job(ctx context.Context, o *v1alpha1.DeadLetterReplay, name string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: name}, job)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Job %s: %w", name, err)
	}
	return job, nil
}

// report writes the status, if anything changed, and then records Events.
func (r *Reconciler) report(ctx context.Context, before *v1alpha1.DeadLetterReplay, seen observed, failure error) error {
	o := seen.replay
	if failure != nil {
		kstatus.SetFailure(&o.Status.Conditions, o.Generation, v1alpha1.CompleteCondition, failure)
	} else {
		setStatus(&o.Status, seen)
	}
	return r.Report(ctx, before, o, func() []kstatus.Event { return transitions(before, o) })
}

// SetupWithManager starts the reconciler with the manager. It returns an error when a watch cannot be made.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.applied = apply.New(r.Client, r.Live, v1alpha1.CompleteCondition)
	r.applied.Inherited = r.Platform.Inherited
	edited := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("deadletterreplay").
		WithOptions(controller.Options{NewQueue: fairqueue.New}).
		For(&v1alpha1.DeadLetterReplay{}, builder.WithPredicates(kstatus.Edited())).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(labelled)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(labelled)).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.EnqueueRequestsFromMapFunc(r.unfinished), edited).
		Watches(&v1alpha1.Outbox{}, handler.EnqueueRequestsFromMapFunc(r.unfinished), edited).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.Observer.Start(ctx, func(o types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: o}) })
			return nil
		})).
		Complete(r)
}

// labelled is the replay that an object was made for.
func labelled(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[desired.LabelReplay]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// unfinished are the replays of a namespace that may wait for what has changed there.
func (r *Reconciler) unfinished(ctx context.Context, o client.Object) (found []reconcile.Request) {
	var all v1alpha1.DeadLetterReplayList
	if err := r.Client.List(ctx, &all, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the DeadLetterReplays")
	}
	for i := range all.Items {
		if !finished(&all.Items[i]) {
			found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return found
}
