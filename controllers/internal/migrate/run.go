package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
)

// maxPods bounds what is read of a Job from the API server. The Job has one pod; every user may give others its labels.
const maxPods = 4

// Runner runs migration Jobs, and looks at them. All fields are required.
type Runner struct {
	// Client reads from the cache, and deletes.
	Client client.Client
	// Live reads from the API server: Events of a Job that does not start, and the pods of one that failed, where the cache is behind.
	Live client.Reader
	// Mounts has the Events about files of pods.
	Mounts pods.FailedMounts
	// Applied makes the Jobs.
	Applied *apply.Applier
}

// Run takes the owner's migration a step further: it makes the Job that is wanted (nil for none), again
// after a failure, and deletes those that are not needed. It returns an error when the API server does.
func (r *Runner) Run(ctx context.Context, owner desired.Owner, wanted *desired.Migration) (Migration, error) {
	p, err := r.plan(ctx, owner, wanted)
	if err != nil {
		return Migration{}, err
	}
	if p.attempt > 0 {
		if err := r.Applied.Apply(ctx, owner, wanted.Job(p.attempt), &batchv1.Job{}); err != nil {
			p.Unmade = p.attempt == 1
			return p.Migration, err
		}
	}
	for i := range p.remove {
		job := &p.remove[i]
		err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return p.Migration, fmt.Errorf("delete the old Job %s: %w", job.Name, err)
		}
		r.Applied.Drop(owner, "Job/"+job.Name)
	}
	return r.explain(ctx, owner, p)
}

// Look returns the state of a migration that another owner runs. It returns an error when the API server does.
func (r *Runner) Look(ctx context.Context, owner desired.Owner, wanted *desired.Migration) (Migration, error) {
	p, err := r.plan(ctx, owner, wanted)
	if err != nil {
		return Migration{}, err
	}
	p.Of, p.Unmade = desired.Kind(owner)+" "+owner.GetName(), p.attempt == 1
	migration, err := r.explain(ctx, owner, p)
	migration.Pods = nil // their missing references are in the owner's status
	return migration, err
}

// Due reports whether the migration has not been tried: it has no Job. It returns an error when the API server does.
func (r *Runner) Due(ctx context.Context, owner desired.Owner, wanted *desired.Migration) (bool, error) {
	if wanted == nil {
		return false, nil
	}
	p, err := r.plan(ctx, owner, wanted)
	return p.attempt == 1, err
}

// plan lists the owner's Jobs, and decides by them.
func (r *Runner) plan(ctx context.Context, owner desired.Owner, wanted *desired.Migration) (plan, error) {
	selector := desired.Selector(owner, desired.ComponentMigration)
	var jobs batchv1.JobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(owner.GetNamespace()), client.MatchingLabels(selector)); err != nil {
		return plan{}, fmt.Errorf("list the migration Jobs: %w", err)
	}
	hash := ""
	if wanted != nil {
		hash = wanted.Hash
	}
	p := planFor(slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return !metav1.IsControlledBy(&j, owner) }), hash, time.Now())
	p.Selector = labels.SelectorFromSet(selector).String()
	return p, nil
}

// explain adds what the failed attempt said last, or what keeps the running one from starting.
func (r *Runner) explain(ctx context.Context, owner desired.Owner, p plan) (Migration, error) {
	if p.explains == nil {
		return p.Migration, nil
	}
	var err error
	ofJob := map[string]string{batchv1.JobNameLabel: p.explains.Name, batchv1.ControllerUidLabel: string(p.explains.UID)}
	if p.Pods, err = pods.List(ctx, r.Client, owner.GetNamespace(), ofJob); err != nil {
		return p.Migration, err
	}
	if p.State == Succeeded {
		p.Detail = pods.Remark(p.Pods)
		return p.Migration, nil
	}
	_, failed := finished(*p.explains, batchv1.JobFailed)
	if failed {
		p.Reason, p.Detail = pods.LastWords(p.Pods)
		if p.Detail == "" && p.explains.Status.Failed > 0 { // the cache may be without the pod's end, and the Event of the failure is recorded once
			if p.Pods, err = pods.List(ctx, r.Live, owner.GetNamespace(), ofJob, client.Limit(maxPods)); err != nil {
				return p.Migration, err
			}
			p.Reason, p.Detail = pods.LastWords(p.Pods)
		}
	} else {
		p.Reason, p.Detail = pods.Trouble(p.Pods)
	}
	if p.Detail == "" && (!failed || p.explains.Status.Failed == 0) { // that had a pod, and an Event about none is older
		if p.Detail, err = pods.Blocked(ctx, r.Live, r.Mounts, p.explains, p.Pods); p.Detail != "" && len(p.Pods) == 0 {
			p.Reason = v1alpha1.ReasonUnavailable // as of a Deployment's pods that cannot be created
		}
	}
	if p.Detail == "" && failure(p.explains) == batchv1.JobReasonDeadlineExceeded {
		p.Detail = "it did not end in time"
	}
	p.Late = !failed && p.Detail != "" && (p.Late || time.Since(cmp.Or(p.explains.Status.StartTime, &p.explains.CreationTimestamp).Time) >= startsWithin)
	return p.Migration, err
}
