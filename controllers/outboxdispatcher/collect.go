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

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// collect deletes the files that no ReplicaSet and no Job names any more, and the types that no pod reads, when a rollout
// has ended. ReplicaSets are read only when there is something to delete.
func (r *Reconciler) collect(ctx context.Context, s *scope) error {
	if !complete(s.deployment, s.obd) {
		return nil
	}
	ours := []client.ListOption{client.InNamespace(s.obd.Namespace), client.MatchingLabels{desired.LabelDispatcher: s.obd.Name}}
	var files corev1.ConfigMapList
	if err := r.Client.List(ctx, &files, append(ours, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list the ConfigMaps: %w", err)
	}
	var jobs batchv1.JobList
	if err := r.Client.List(ctx, &jobs, append(ours, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list the Jobs: %w", err)
	}
	needed := slices.Concat(s.files, desired.ConfigNames(&s.deployment.Spec.Template.Spec))
	for _, job := range jobs.Items {
		needed = append(needed, desired.ConfigNames(&job.Spec.Template.Spec)...)
	}
	old := slices.DeleteFunc(files.Items, func(m corev1.ConfigMap) bool {
		old := ptr.Deref(m.Immutable, false) || m.Name == desired.ConsumersName(s.obd) && !s.obd.Spec.RequireVerifiedConsumers
		return !old || !metav1.IsControlledBy(&m, s.obd) || slices.Contains(needed, m.Name)
	})
	if len(old) == 0 {
		return nil
	}
	var sets appsv1.ReplicaSetList
	if err := r.Live.List(ctx, &sets, ours...); err != nil {
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
		r.applied.Drop(s.obd, "ConfigMap/"+m.Name)
	}
	return nil
}
