package outboxdispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// look reads what is there, so that it is reported also when a later phase cannot go on.
func (r *Reconciler) look(ctx context.Context, s *scope) error {
	key := types.NamespacedName{Namespace: s.obd.Namespace, Name: desired.Name(s.obd)}
	deployment := &appsv1.Deployment{}
	if err := r.Client.Get(ctx, key, deployment); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Deployment %s: %w", key.Name, err)
	}
	if metav1.IsControlledBy(deployment, s.obd) {
		s.deployment = deployment
	}
	var err error
	s.pods, err = r.podsOf(ctx, s.obd, desired.Selector(s.obd, desired.NameDispatcher))
	return err
}

// podsOf lists the pods with the labels, by name.
func (r *Reconciler) podsOf(ctx context.Context, obd *v1alpha1.OutboxDispatcher, labels map[string]string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(obd.Namespace), client.MatchingLabels(labels)); err != nil {
		return nil, fmt.Errorf("list the pods of OutboxDispatcher %s: %w", obd.Name, err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods.Items, nil
}

// resolveRefs reads the Secrets and the ConfigMaps that the spec names.
func (r *Reconciler) resolveRefs(ctx context.Context, s *scope) (err error) {
	if s.secrets, err = r.secrets.resolve(ctx, s.obd); err != nil {
		return err
	}
	s.resolved, err = r.schemas.resolve(ctx, s.obd)
	return err
}

// config applies what the pods of the migration and of the workload need.
func (r *Reconciler) config(ctx context.Context, s *scope) error {
	if err := r.applied.apply(ctx, s.obd, desired.ServiceAccount(s.obd), &corev1.ServiceAccount{}); err != nil {
		return err
	}
	return r.applied.apply(ctx, s.obd, desired.ConfigMap(s.resolved), &corev1.ConfigMap{})
}

// migrate runs the migration Job. The workload waits for the first migration to succeed. Later it
// waits only while one runs: when that fails, pods that do not fit the schema do not become ready,
// and so replace none that do.
func (r *Reconciler) migrate(ctx context.Context, s *scope) error {
	wanted, err := desired.NewMigration(s.obd, r.Image, s.secrets.migration)
	if err != nil {
		return podTemplateProblem(err)
	}
	var jobs batchv1.JobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(s.obd.Namespace), client.MatchingLabels(desired.Selector(s.obd, desired.NameMigration))); err != nil {
		return fmt.Errorf("list the migration Jobs: %w", err)
	}
	hash := ""
	if wanted != nil {
		hash = wanted.Hash
	}
	plan := planMigration(slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return !metav1.IsControlledBy(&j, s.obd) }), hash, time.Now())
	s.migration = plan.migration
	if plan.attempt > 0 {
		if err := r.applied.apply(ctx, s.obd, wanted.Job(plan.attempt), &batchv1.Job{}); err != nil {
			return err
		}
	}
	for i := range plan.remove {
		job := &plan.remove[i]
		err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old migration Job %s: %w", job.Name, err)
		}
	}
	if s.migration.detail, err = r.migrationDetail(ctx, s.obd, plan); err != nil {
		return err
	}
	if s.migration.state == migrationRunning || (s.migration.state == migrationFailed && s.deployment == nil) {
		return errWait
	}
	return nil
}

// migrationDetail is what the failed attempt said last, or what keeps the running one from starting.
func (r *Reconciler) migrationDetail(ctx context.Context, obd *v1alpha1.OutboxDispatcher, plan migrationPlan) (string, error) {
	if plan.tells == "" {
		return "", nil
	}
	pods, err := r.podsOf(ctx, obd, map[string]string{batchv1.JobNameLabel: plan.tells})
	if err != nil {
		return "", err
	}
	switch plan.state {
	case migrationRunning:
		return podTrouble(pods), nil
	case migrationFailed:
		return lastWords(pods), nil
	}
	return "", nil
}

// workload applies the Deployment and its PodDisruptionBudget.
func (r *Reconciler) workload(ctx context.Context, s *scope) error {
	wanted, err := desired.Deployment(s.resolved, r.Image, s.secrets.dispatcher)
	if err != nil {
		return podTemplateProblem(err)
	}
	deployment := &appsv1.Deployment{}
	if err := r.applied.apply(ctx, s.obd, wanted, deployment); err != nil {
		return err
	}
	s.deployment = deployment
	return r.applied.apply(ctx, s.obd, desired.PodDisruptionBudget(s.obd), &policyv1.PodDisruptionBudget{})
}

func podTemplateProblem(err error) error {
	if !errors.Is(err, desired.ErrPodTemplate) {
		return err
	}
	return &problem{v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonInvalidPodTemplate, sentence(err.Error()), true}
}

// refused reports whether the API server will give the same answer again.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}
