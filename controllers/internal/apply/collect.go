package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// Collect deletes the owner's ConfigMaps with the labels, but for those that are needed: by name, or by a ReplicaSet or a
// Job with the labels, a pod of which may still start. It returns an error when the API server does.
func (a *Applier) Collect(ctx context.Context, owner client.Object, labels map[string]string, needed ...string) error {
	ours := []client.ListOption{client.InNamespace(owner.GetNamespace()), client.MatchingLabels(labels), client.UnsafeDisableDeepCopy}
	var files corev1.ConfigMapList
	var jobs batchv1.JobList
	var sets appsv1.ReplicaSetList
	if err := errors.Join(a.client.List(ctx, &files, ours...), a.client.List(ctx, &jobs, ours...), a.client.List(ctx, &sets, ours...)); err != nil {
		return fmt.Errorf("list the ConfigMaps, Jobs and ReplicaSets of %s: %w", owner.GetName(), err)
	}
	for _, job := range jobs.Items {
		needed = append(needed, desired.ConfigNames(&job.Spec.Template.Spec)...)
	}
	for _, set := range sets.Items {
		needed = append(needed, desired.ConfigNames(&set.Spec.Template.Spec)...)
	}
	for _, m := range files.Items {
		if slices.Contains(needed, m.Name) || !metav1.IsControlledBy(&m, owner) {
			continue
		}
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace}}
		if err := a.client.Delete(ctx, gone, client.Preconditions{UID: &m.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old ConfigMap %s: %w", m.Name, err)
		}
		a.Drop(owner, "ConfigMap/"+m.Name)
	}
	return nil
}
