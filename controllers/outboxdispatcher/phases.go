package outboxdispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// look reads what is there, and what the pods said last, so that it is reported also when a later phase
// cannot go on.
func (r *Reconciler) look(ctx context.Context, s *scope) error {
	key := types.NamespacedName{Namespace: s.obd.Namespace, Name: desired.Name(s.obd)}
	deployment := &appsv1.Deployment{}
	if err := r.Client.Get(ctx, key, deployment); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Deployment %s: %w", key.Name, err)
	}
	if metav1.IsControlledBy(deployment, s.obd) {
		s.deployment = deployment
	}
	labelled, err := pods.List(ctx, r.Client, s.obd.Namespace, desired.Selector(s.obd, desired.ComponentDispatcher))
	if err != nil {
		return err
	}
	if s.pods, err = r.owned(ctx, s.deployment, labelled); err != nil {
		return err
	}
	s.heard = r.Observer.Observe(client.ObjectKeyFromObject(s.obd), desired.DispatcherName(s.obd), s.pods)
	return nil
}

// config applies what the pods of the migration and of the workload need.
func (r *Reconciler) config(ctx context.Context, s *scope) error {
	if account := desired.ServiceAccount(s.obd); account != nil {
		if err := r.applied.Apply(ctx, s.obd, account, &corev1.ServiceAccount{}); err != nil {
			return err
		}
	}
	wanted := []*corev1ac.ConfigMapApplyConfiguration{desired.ConfigMap(s.obd)}
	if files := desired.MigrationConfigMap(s.obd); files != nil && r.migrator(s) == nil {
		wanted = append(wanted, files)
	}
	for _, files := range wanted {
		s.files = append(s.files, *files.Name)
		if err := r.applied.Apply(ctx, s.obd, files, &corev1.ConfigMap{}); err != nil {
			return err
		}
	}
	return nil
}

// migrate sees to the migration. The workload waits for the first migration to succeed. Later it
// waits only while one runs: when that fails, pods that do not fit the schema do not become ready,
// and so replace none that do.
func (r *Reconciler) migrate(ctx context.Context, s *scope) error {
	var err error
	if s.migration, err = r.migration(ctx, s); err != nil {
		return err
	}
	if s.migration.State == migrate.Running || (s.migration.State == migrate.Failed && s.deployment == nil) {
		return errWait
	}
	return nil
}

// workload applies the Deployment and its PodDisruptionBudget.
func (r *Reconciler) workload(ctx context.Context, s *scope) error {
	wanted, err := desired.Deployment(s.obd, r.Platform)
	if err != nil {
		return podTemplateProblem(err)
	}
	if upgrades(s.deployment, wanted, r.Platform.Image) {
		may, err := r.pace.may(ctx, s.obd)
		if err != nil {
			return err
		}
		if s.queues = !may; s.queues {
			return nil // the pods that run go on
		}
	}
	deployment := &appsv1.Deployment{}
	if err := r.applied.Apply(ctx, s.obd, wanted, deployment); err != nil {
		return err
	}
	if cause := rolls(s.deployment, deployment); cause != "" {
		r.reporter.Tell(ctx, s.obd, deployment, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRolledOut, Action: "RollOut", Note: cause})
	}
	s.deployment = deployment
	return r.applied.Apply(ctx, s.obd, desired.PodDisruptionBudget(s.obd), &policyv1.PodDisruptionBudget{})
}

// rolls says what makes the pods roll from one Deployment to the other, empty for nothing.
func rolls(before, after *appsv1.Deployment) string {
	if before == nil || equality.Semantic.DeepEqual(before.Spec.Template, after.Spec.Template) {
		return ""
	}
	var causes []string
	was, is := before.Spec.Template.DeepCopy(), after.Spec.Template.DeepCopy()
	if files := desired.ConfigNames(&is.Spec); !slices.Equal(desired.ConfigNames(&was.Spec), files) {
		causes = append(causes, "its configuration (ConfigMap "+strings.Join(files, ", ")+")")
	}
	if image := desired.Image(&is.Spec); desired.Image(&was.Spec) != image {
		causes = append(causes, "its image ("+image+")")
	}
	desired.StripConfig(&was.Spec)
	desired.StripConfig(&is.Spec)
	if !equality.Semantic.DeepEqual(was, is) {
		causes = append(causes, "its pod template")
	}
	return "New pods replace those from before. What changed: " + strings.Join(causes, ", ") + "."
}

func podTemplateProblem(err error) error {
	if !errors.Is(err, desired.ErrPodTemplate) {
		return err
	}
	return problem.Stalling(v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonInvalidPodTemplate, problem.Sentence(err.Error()))
}
