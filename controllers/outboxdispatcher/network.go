package outboxdispatcher

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// What the manager may do to limit who reaches dispatcher pods.
//
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch

// network applies the NetworkPolicy of the pods, where the operator is to make one.
func (r *Reconciler) network(ctx context.Context, obd *v1alpha1.OutboxDispatcher) error {
	if r.OperatorNamespace == "" {
		return nil
	}
	return r.applied.Apply(ctx, obd, desired.NetworkPolicy(obd, r.OperatorNamespace), &networkingv1.NetworkPolicy{})
}
