package outboxdispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// stateOfPods is how spec.state reaches the pods.
type stateOfPods struct {
	// resumes means that they stay Paused until the rollout has ended or takes too long, and are Running then.
	resumes bool
	// late says why they do not read it at once, empty when they do.
	late string
}

// stop applies what stops delivery, before all that may fail (CONTRACT C-105), and lets pods claim again whose rollout takes
// too long. It returns the Deployment as it is then.
func (r *Reconciler) stop(ctx context.Context, obd *v1alpha1.OutboxDispatcher, current *appsv1.Deployment, pods []corev1.Pod) (*appsv1.Deployment, stateOfPods, error) {
	deployment, unscaled := r.scale(ctx, obd, current) // a policy on Deployments may refuse it, and a pause reaches the pods all the same
	applied := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: obd.Namespace, Name: *desired.StateConfigMap(obd).Name}
	if err := r.Client.Get(ctx, key, applied); client.IgnoreNotFound(err) != nil {
		return deployment, stateOfPods{}, errors.Join(unscaled, fmt.Errorf("read ConfigMap %s: %w", key.Name, err))
	}
	if r.waits(obd, deployment, applied) {
		return deployment, stateOfPods{resumes: true}, unscaled
	}
	state, err := r.applyState(ctx, obd, pods)
	return deployment, state, errors.Join(unscaled, err)
}

// waits reports whether pods that were paused wait for their rollout to claim again.
func (r *Reconciler) waits(obd *v1alpha1.OutboxDispatcher, deployment *appsv1.Deployment, applied *corev1.ConfigMap) bool {
	key := client.ObjectKeyFromObject(obd)
	if deployment == nil || desired.State(applied) != spec.Paused || obd.Spec.State == spec.Paused {
		r.resuming.Delete(key)
		return false
	}
	since, _ := r.resuming.LoadOrStore(key, time.Now())
	return time.Since(since.(time.Time)) < r.ResumeWithin
}

// scale sets the replicas of a Deployment that runs. One that does not run starts with the template of the
// current spec, which workload applies, and never with an earlier one. One that cannot be scaled is returned as it was.
func (r *Reconciler) scale(ctx context.Context, obd *v1alpha1.OutboxDispatcher, deployment *appsv1.Deployment) (*appsv1.Deployment, error) {
	want := desired.Replicas(obd)
	if deployment == nil || *deployment.Spec.Replicas == want || *deployment.Spec.Replicas == 0 {
		return deployment, nil
	}
	scaled := deployment.DeepCopy()
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"replicas":%d}}`, scaled.UID, want)
	if err := r.Client.Patch(ctx, scaled, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return deployment, fmt.Errorf("scale Deployment %s: %w", scaled.Name, err)
	}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(deployment), scaled); err != nil { // as the cache has it
		return deployment, fmt.Errorf("read Deployment %s, which was just scaled: %w", scaled.Name, err)
	}
	return scaled, nil
}

// resume lets pods claim again when all of them are of the newest template: the mistake because of
// which delivery was paused does not continue after its correction.
func (r *Reconciler) resume(ctx context.Context, obd *v1alpha1.OutboxDispatcher, state stateOfPods, deployment *appsv1.Deployment, pods []corev1.Pod) (stateOfPods, error) {
	if !state.resumes || !complete(deployment, obd) {
		return state, nil
	}
	return r.applyState(ctx, obd, pods)
}

// applyState applies the ConfigMap with the state, and annotates the pods. The kubelet may take 90 seconds to update the
// files of a ConfigMap; it does so at once when a pod's annotation changes.
func (r *Reconciler) applyState(ctx context.Context, obd *v1alpha1.OutboxDispatcher, pods []corev1.Pod) (state stateOfPods, err error) {
	if err := r.applied.Apply(ctx, obd, desired.StateConfigMap(obd), &corev1.ConfigMap{}); err != nil {
		return state, err
	}
	if err := r.annotate(ctx, pods, desired.AnnotationState, string(obd.Spec.State), string(spec.Running)); err != nil {
		state.late = "The pods read the state within 90 seconds, and not at once: they could not be annotated"
		if reason := apierrors.ReasonForError(err); reason != "" {
			state.late += fmt.Sprintf(", because the API server says %s", reason)
		}
	}
	return state, nil
}

// annotate gives the pods an annotation, for which the kubelet looks at their ConfigMaps. unset is what it means not to
// have it. The error is that of the last pod that could not be annotated.
func (r *Reconciler) annotate(ctx context.Context, pods []corev1.Pod, key, value, unset string) (failed error) {
	for i := range pods {
		pod := pods[i].DeepCopy()
		if cmp.Or(pod.Annotations[key], unset) == value || pod.DeletionTimestamp != nil {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, pod.UID, key, value)
		err := r.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			failed = err
		}
	}
	return failed
}
