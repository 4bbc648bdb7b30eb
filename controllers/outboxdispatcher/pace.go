package outboxdispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// pacer lets a few dispatchers at a time take the operator's new image. It never
// delays a change of a spec.
type pacer struct {
	client client.Client
	image  string
	most   int

	mu      sync.Mutex
	seen    time.Time
	rolling int                                // those of the last look
	granted map[types.NamespacedName]time.Time // those that may, and did not yet when they were looked at
}

const (
	// lookEvery is the time between two looks at all Deployments.
	lookEvery = time.Second
	// grantedFor is how long one that may roll and does not keeps its place.
	grantedFor = time.Minute
)

// upgrades reports whether the operator's image, and nothing in the spec, makes the pods roll.
func upgrades(deployment *appsv1.Deployment, wanted *appsv1ac.DeploymentApplyConfiguration, image string) bool {
	if deployment == nil || deployment.Spec.Replicas == nil || *deployment.Spec.Replicas == 0 {
		return false
	}
	next := ""
	for _, c := range wanted.Spec.Template.Spec.Containers {
		if c.Name != nil && *c.Name == desired.Container && c.Image != nil {
			next = *c.Image
		}
	}
	return next == image && desired.Image(&deployment.Spec.Template.Spec) != image &&
		deployment.Annotations[desired.AnnotationSpec] == wanted.Annotations[desired.AnnotationSpec]
}

// may reports whether the dispatcher may roll now.
func (p *pacer) may(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, now := client.ObjectKeyFromObject(obd), time.Now()
	if now.Sub(p.seen) > lookEvery {
		if err := p.count(ctx, now); err != nil {
			return false, err
		}
	}
	if _, ok := p.granted[key]; ok {
		return true, nil
	}
	if p.rolling+len(p.granted) >= p.most {
		return false, nil
	}
	p.granted[key] = now
	return true, nil
}

// count counts the dispatchers that roll to the image.
func (p *pacer) count(ctx context.Context, now time.Time) error {
	var all appsv1.DeploymentList
	ours := client.MatchingLabels{desired.LabelComponent: desired.ComponentDispatcher, desired.LabelManagedBy: desired.Manager}
	if err := p.client.List(ctx, &all, ours, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the Deployments that roll: %w", err)
	}
	waiting := map[types.NamespacedName]time.Time{}
	p.seen, p.rolling = now, 0
	for i := range all.Items {
		d := &all.Items[i]
		key := types.NamespacedName{Namespace: d.Namespace, Name: d.Labels[desired.LabelDispatcher]}
		switch since, granted := p.granted[key]; {
		case desired.Image(&d.Spec.Template.Spec) == p.image:
			if !ended(d) {
				p.rolling++
			}
		case granted && now.Sub(since) < grantedFor:
			waiting[key] = since
		}
	}
	p.granted = waiting
	return nil
}

// ended reports whether a rollout has ended, well or not: one that is stuck delays no other.
func ended(d *appsv1.Deployment) bool {
	if d.Status.ObservedGeneration < d.Generation {
		return false
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			return true
		}
	}
	return d.Spec.Replicas != nil && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
		d.Status.Replicas == d.Status.UpdatedReplicas && d.Status.AvailableReplicas >= d.Status.UpdatedReplicas
}
