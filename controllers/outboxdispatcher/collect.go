package outboxdispatcher

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// collect deletes the files that no ReplicaSet and no Job names any more, but for the current ones, and the types that no pod reads, when a rollout
// has ended.
func (r *Reconciler) collect(ctx context.Context, obd *v1alpha1.OutboxDispatcher, deployment *appsv1.Deployment, current []string) error {
	if !complete(deployment, obd) {
		return nil
	}
	ours := []client.ListOption{client.InNamespace(obd.Namespace), client.MatchingLabels{desired.LabelDispatcher: obd.Name}}
	var files corev1.ConfigMapList
	if err := r.Client.List(ctx, &files, append(ours, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list the ConfigMaps: %w", err)
	}
	var jobs batchv1.JobList
	if err := r.Client.List(ctx, &jobs, append(ours, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list the Jobs: %w", err)
	}
	needed := slices.Concat(current, desired.ConfigNames(&deployment.Spec.Template.Spec))
	for _, job := range jobs.Items {
		needed = append(needed, desired.ConfigNames(&job.Spec.Template.Spec)...)
	}
	old := slices.DeleteFunc(files.Items, func(m corev1.ConfigMap) bool {
		old := ptr.Deref(m.Immutable, false) || m.Name == desired.ConsumersName(obd) && obd.Spec.ConsumerPolicy != v1alpha1.ConsumersVerified
		return !old || !metav1.IsControlledBy(&m, obd) || slices.Contains(needed, m.Name)
	})
	if len(old) == 0 {
		return nil
	}
	var sets appsv1.ReplicaSetList
	if err := r.Client.List(ctx, &sets, append(ours, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list the ReplicaSets: %w", err)
	}
	for _, set := range sets.Items {
		needed = append(needed, desired.ConfigNames(&set.Spec.Template.Spec)...)
	}
	for _, m := range old {
		if slices.Contains(needed, m.Name) {
			continue
		}
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace}}
		if err := r.Client.Delete(ctx, gone, client.Preconditions{UID: &m.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old ConfigMap %s: %w", m.Name, err)
		}
		r.applied.Drop(obd, "ConfigMap/"+m.Name)
	}
	return nil
}
