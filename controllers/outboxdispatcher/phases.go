package outboxdispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// findWorkload returns the Deployment, nil when there is none of ours and none to adopt, and its pods.
func (r *Reconciler) findWorkload(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (*appsv1.Deployment, []corev1.Pod, error) {
	key := types.NamespacedName{Namespace: obd.Namespace, Name: desired.Name(obd)}
	deployment := &appsv1.Deployment{}
	if err := r.Client.Get(ctx, key, deployment); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read Deployment %s: %w", key.Name, err)
	}
	if !metav1.IsControlledBy(deployment, obd) && !apply.Orphaned(deployment, desired.Labels(obd, desired.ComponentDispatcher)) {
		return nil, nil, nil
	}
	labelled, err := pods.List(ctx, r.Client, obd.Namespace, desired.Selector(obd, desired.ComponentDispatcher))
	if err != nil {
		return nil, nil, err
	}
	owned, err := r.owned(ctx, deployment, labelled)
	return deployment, owned, err
}

// named are the objects with names that others may have taken.
func (r *Reconciler) named(obd *v1alpha1.OutboxDispatcher) []apply.Wanted {
	all := []apply.Wanted{
		{Want: desired.StateConfigMap(obd), Current: &corev1.ConfigMap{}},
		{Want: desired.PodDisruptionBudget(obd), Current: &policyv1.PodDisruptionBudget{}},
		{Want: appsv1ac.Deployment(desired.Name(obd), obd.Namespace).WithLabels(desired.Labels(obd, desired.ComponentDispatcher)), Current: &appsv1.Deployment{}},
	}
	if account := desired.ServiceAccount(obd); account != nil {
		all = append(all, apply.Wanted{Want: account, Current: &corev1.ServiceAccount{}})
	}
	if r.OperatorNamespace != "" {
		all = append(all, apply.Wanted{Want: desired.NetworkPolicy(obd, r.OperatorNamespace), Current: &networkingv1.NetworkPolicy{}})
	}
	if obd.Spec.Delivery.ConsumerPolicy == spec.ConsumersVerified {
		all = append(all, apply.Wanted{Want: desired.ConsumersConfigMap(obd, nil), Current: &corev1.ConfigMap{}})
	}
	return all
}

// applyFiles applies the ServiceAccount and the ConfigMaps that the pods of the workload and of the dispatcher's own
// migration need. It returns the names of the ConfigMaps, first that of the workload.
func (r *Reconciler) applyFiles(ctx context.Context, obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) (names []string, err error) {
	if account := desired.ServiceAccount(obd); account != nil {
		if err := r.applied.Apply(ctx, obd, account, &corev1.ServiceAccount{}); err != nil {
			return nil, err
		}
	}
	wanted := []*corev1ac.ConfigMapApplyConfiguration{desired.ConfigMap(obd, outbox)}
	if files := desired.MigrationConfigMap(obd); files != nil {
		wanted = append(wanted, files)
	}
	for _, files := range wanted {
		if err := r.applied.Apply(ctx, obd, files, &corev1.ConfigMap{}); err != nil {
			return nil, err
		}
		names = append(names, *files.Name)
	}
	return names, nil
}

// migrate runs the migration, or watches the Outbox's. The workload waits for the first migration to succeed. Once it is
// deployed it waits only while one runs: when that fails, pods that do not fit the schema do not become ready,
// and so replace none that do. A migration that a changed spec waits for does not wait for its turn.
func (r *Reconciler) migrate(ctx context.Context, obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox, current *appsv1.Deployment, wanted *appsv1ac.DeploymentApplyConfiguration) (migrate.Migration, error) {
	migration, err := r.migration(ctx, obd, outbox)
	if err == nil && (migration.State == migrate.Running || migration.State == migrate.Failed && current == nil) {
		if outbox != nil && urgent(obd, current, wanted.Annotations) {
			r.Pace.Let(outbox)
		}
		err = errWait
	}
	return migration, err
}

// workload applies the Deployment and its PodDisruptionBudget, and returns the Deployment.
func (r *Reconciler) workload(ctx context.Context, obd *v1alpha1.OutboxDispatcher, current *appsv1.Deployment, wanted *appsv1ac.DeploymentApplyConfiguration) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	if err := r.applied.Apply(ctx, obd, wanted, deployment); err != nil {
		return current, err
	}
	if cause := rolls(current, deployment); cause != "" {
		r.Record(ctx, obd, deployment, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRolledOut, Action: "RollOut", Note: cause})
	}
	return deployment, r.applied.Apply(ctx, obd, desired.PodDisruptionBudget(obd), &policyv1.PodDisruptionBudget{})
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
