package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	// OperatorName is the app.kubernetes.io/name of the operator's own pods.
	OperatorName = "outbox-operator"
	// LabelMetrics on a namespace or a pod, with the value MetricsEnabled, lets it reach the metrics.
	LabelMetrics = "metrics"
	// MetricsEnabled is the value of LabelMetrics.
	MetricsEnabled = "enabled"
)

// NetworkPolicy lets into the dispatcher pods who has to: the operator's pods in its namespace, and those who
// gather metrics. The kubelet is let in by itself. Egress is left alone.
func NetworkPolicy(obd *v1alpha1.OutboxDispatcher, operatorNamespace string) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(obd, ComponentDispatcher, Name(obd), operatorNamespace)
}

// networkPolicy is for the pods of a component.
func networkPolicy(o Owner, component, name, operatorNamespace string) *networkingv1ac.NetworkPolicyApplyConfiguration {
	labelled := func(key, value string) *metav1ac.LabelSelectorApplyConfiguration {
		return metav1ac.LabelSelector().WithMatchLabels(map[string]string{key: value})
	}
	peer := networkingv1ac.NetworkPolicyPeer
	return networkingv1ac.NetworkPolicy(name, o.GetNamespace()).
		WithLabels(Labels(o, component)).
		WithOwnerReferences(owner(o)).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(o, component))).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(networkingv1ac.NetworkPolicyIngressRule().
				WithPorts(networkingv1ac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(Port))).
				WithFrom(
					peer().WithNamespaceSelector(labelled(corev1.LabelMetadataName, operatorNamespace)).WithPodSelector(labelled("app.kubernetes.io/name", OperatorName)),
					peer().WithNamespaceSelector(labelled(LabelMetrics, MetricsEnabled)),
					peer().WithPodSelector(labelled(LabelMetrics, MetricsEnabled)))))
}
