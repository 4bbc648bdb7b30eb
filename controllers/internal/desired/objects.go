package desired

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// ServiceAccount is the pods' identity. It holds no API token, since dispatchers know no Kubernetes.
func ServiceAccount(obd *v1alpha1.OutboxDispatcher) *corev1ac.ServiceAccountApplyConfiguration {
	return corev1ac.ServiceAccount(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, NameDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithAutomountServiceAccountToken(false)
}

// Keys of the ConfigMap.
const (
	keyConfig  = "config.yaml"
	keyMigrate = "migrate.yaml"
)

// ConfigMap holds the files that the dispatchers and the migration Job load. No secret is in it.
func ConfigMap(obd *v1alpha1.OutboxDispatcher) *corev1ac.ConfigMapApplyConfiguration {
	cm := corev1ac.ConfigMap(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, NameDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithData(map[string]string{keyConfig: render(Config(obd))})
	if Migrates(obd) {
		cm.WithData(map[string]string{keyMigrate: render(MigrationConfig(obd))})
	}
	return cm
}

// PodDisruptionBudget lets one pod go at a time. A single replica may always go, and so may a pod
// that is not ready: an outage of the database must not keep a node from being drained.
func PodDisruptionBudget(obd *v1alpha1.OutboxDispatcher) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	return policyv1ac.PodDisruptionBudget(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, NameDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(1)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(obd, NameDispatcher))))
}
