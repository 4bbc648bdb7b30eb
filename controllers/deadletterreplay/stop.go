package deadletterreplay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// stopTimeout is how long a deleted object waits for the Job that stops it: the Job's own deadline, and time for its pod
// to start.
const stopTimeout = desired.StopDeadline + 30*time.Second

// stop ends a replay that was deleted: the Job ends after its batch, a second Job skips what waits, and the object
// goes. It goes without that when the second Job fails, or is not done in time.
func (r *Reconciler) stop(ctx context.Context, o *api.DeadLetterReplay) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(o, Finalizer) {
		return ctrl.Result{}, nil // it never began, or is done
	}
	if restored(o) != "" {
		return ctrl.Result{}, r.release(ctx, o)
	}
	if err := r.sayStopping(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.end(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	job, why, err := r.stopJob(ctx, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	if job != nil {
		all, err := r.pods(ctx, job)
		if err != nil {
			return ctrl.Result{}, err
		}
		if p := finalProgress(all); p != nil {
			return ctrl.Result{}, r.release(ctx, o, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: api.ReasonStopped, Action: "Stop", Note: stopped(*p)})
		}
		if hasCondition(job, batchv1.JobComplete) { // its pod was removed
			return ctrl.Result{}, r.release(ctx, o, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: api.ReasonStopped, Action: "Stop", Note: "It was deleted, and stopped: what waited is skipped."})
		}
		if hasCondition(job, batchv1.JobFailed) {
			why = "the Job that skips it failed"
		}
		if words := pods.LastWords(all); words != "" {
			why += ": " + words
		} else if _, words := pods.Trouble(all); words != "" {
			why += ": " + words
		}
	}
	late := time.Since(o.DeletionTimestamp.Time) > stopTimeout
	if !late && (job == nil && why == "" || job != nil && !hasCondition(job, batchv1.JobFailed)) {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	if why == "" {
		why = "the Job that skips it was not done in time"
	}
	return ctrl.Result{}, r.release(ctx, o, kstatus.Event{Kind: corev1.EventTypeWarning, Reason: api.ReasonNotStopped, Action: "Stop", Note: problem.Sentence(fmt.Sprintf(
		"nothing is replayed any more, but what waits of replay %s is not marked as skipped: %s. Its dead letters stay open; `dispatcher replay stop --id %[1]s` marks it", o.UID, strings.TrimSuffix(why, ".")))})
}

// sayStopping writes that the object is about to go.
func (r *Reconciler) sayStopping(ctx context.Context, o *api.DeadLetterReplay) error {
	before := o.DeepCopy()
	const message = "It was deleted: its Job ends after the batch under way, and what waits is skipped."
	o.Status.ObservedGeneration = o.Generation
	kstatus.SetConditions(&o.Status.Conditions, o.Generation, []metav1.Condition{
		kstatus.Condition(api.CompleteCondition, metav1.ConditionFalse, api.ReasonStopping, message),
		kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonStopping, message),
	})
	return r.reporter.Report(ctx, before, o, func() []kstatus.Event { return nil })
}

// end deletes the replay's own Job, whose pod gets SIGTERM: it ends when its batch is done or rolled back.
func (r *Reconciler) end(ctx context.Context, o *api.DeadLetterReplay) error {
	job, err := r.job(ctx, o, desired.ReplayName(o))
	if err != nil || job == nil || !metav1.IsControlledBy(job, o) || job.DeletionTimestamp != nil {
		return err
	}
	err = r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Job %s of a replay that was deleted: %w", job.Name, err)
	}
	return nil
}

// stopJob makes the Job that skips what waits, once, and its files. When it cannot, it says why.
func (r *Reconciler) stopJob(ctx context.Context, o *api.DeadLetterReplay) (job *batchv1.Job, why string, err error) {
	name := desired.StopName(o)
	if job, err = r.job(ctx, o, name); err != nil {
		return nil, "", err
	}
	replay, err := r.resolve(ctx, o)
	var unresolved *problem.Problem
	if errors.As(err, &unresolved) {
		if job != nil {
			return job, "", nil
		}
		return nil, unresolved.Message, nil
	}
	if err != nil {
		return nil, "", err
	}
	if job == nil {
		wanted, err := replay.StopJob(r.Platform)
		if errors.Is(err, desired.ErrPodTemplate) {
			return nil, err.Error(), nil
		}
		if err != nil {
			return nil, "", err
		}
		switch err := r.Client.Apply(ctx, wanted, client.FieldOwner(desired.Manager)); {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // the namespace goes, or a policy refuses it
			return nil, err.Error(), nil
		case err != nil:
			return nil, "", fmt.Errorf("make Job %s: %w", name, err)
		}
		if job, err = r.job(ctx, o, name); err != nil || job == nil {
			return nil, "", err // the cache has not heard of it yet
		}
	}
	files := &corev1.ConfigMap{}
	err = r.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: name}, files)
	if apierrors.IsNotFound(err) {
		err = r.Client.Apply(ctx, replay.StopConfigMap(job), client.FieldOwner(desired.Manager))
	}
	if err != nil && !apierrors.IsForbidden(err) {
		return job, "", fmt.Errorf("make ConfigMap %s: %w", name, err)
	}
	return job, "", nil
}

// stopped says what became of a replay that was deleted.
func stopped(p status.Replay) string {
	return problem.Sentence(fmt.Sprintf("it was deleted, and stopped: of %d dead letters %s", p.Matched, counts(p)))
}
