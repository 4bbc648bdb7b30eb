package desired

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// ServiceAccount is the pods' identity, nil when the spec names another one. It holds no API token, since
// dispatchers know no Kubernetes.
func ServiceAccount(obd *v1alpha1.OutboxDispatcher) *corev1ac.ServiceAccountApplyConfiguration {
	account := corev1ac.ServiceAccount(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, ComponentDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithAutomountServiceAccountToken(false)
	if s := obd.Spec.Pods.ServiceAccount; s != nil {
		if s.Name != "" {
			return nil
		}
		for _, a := range s.Annotations {
			account.WithAnnotations(map[string]string{a.Name: a.Value})
		}
	}
	return account
}

// accountName is the name of the pods' ServiceAccount.
func accountName(obd *v1alpha1.OutboxDispatcher) string {
	if s := obd.Spec.Pods.ServiceAccount; s != nil && s.Name != "" {
		return s.Name
	}
	return Name(obd)
}

// Keys of the ConfigMaps.
const (
	keyConfig = "config.yaml"
	keyState  = "state"
	keyTypes  = "types"
)

// stateDir is where the state is mounted, as stateFile.
const (
	stateDir  = "/etc/outbox/state"
	stateFile = stateDir + "/" + keyState
)

// ConfigMap holds the file that the dispatchers load. No secret is in it. It never changes: another file
// has another name, so pods of an earlier one read what they always did.
// outbox is the one that the dispatcher refers to, nil for none.
func ConfigMap(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) *corev1ac.ConfigMapApplyConfiguration {
	return files(obd, ComponentDispatcher, Name(obd), dispatcherFile(obd, outbox))
}

// MigrationConfigMap holds the file that the dispatcher's migration Job loads. It is nil when the operator does not migrate a
// database of its own.
func MigrationConfigMap(obd *v1alpha1.OutboxDispatcher) *corev1ac.ConfigMapApplyConfiguration {
	if obd.Spec.OutboxRef != nil || obd.Spec.Database.MigrationSecretRef == nil {
		return nil
	}
	return migrationConfigMap(obd)
}

// OutboxConfigMap holds the file that an Outbox's migration Job loads. It is nil when the operator does not
// migrate.
func OutboxConfigMap(o *v1alpha1.Outbox) *corev1ac.ConfigMapApplyConfiguration {
	if !migrates(o.Spec.Migration) {
		return nil
	}
	return migrationConfigMap(o)
}

func migrationConfigMap(o Owner) *corev1ac.ConfigMapApplyConfiguration {
	name := o.GetName() + "-migrate"
	if Kind(o) == kindOutbox {
		name = o.GetName() + "-outbox"
	}
	return files(o, ComponentMigration, name, migrationFile(o))
}

// files is an immutable ConfigMap with a file, whose name has the hash of its content.
func files(o Owner, component, name, file string) *corev1ac.ConfigMapApplyConfiguration {
	data := map[string]string{keyConfig: file}
	return corev1ac.ConfigMap(name+"-"+Hash(data)[:8], o.GetNamespace()).
		WithLabels(Labels(o, component)).
		WithOwnerReferences(owner(o)).
		WithImmutable(true).
		WithData(data)
}

// StateConfigMap holds the state for the pods: whether they claim. They read it again while they run.
func StateConfigMap(obd *v1alpha1.OutboxDispatcher) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(stateName(obd), obd.Namespace).
		WithLabels(Labels(obd, ComponentDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithData(StateData(obd.Spec.State))
}

// StateData is the data of the ConfigMap of [StateConfigMap].
func StateData(state spec.State) map[string]string {
	return map[string]string{keyState: string(state)}
}

// State is the state in the ConfigMap of [StateConfigMap].
func State(made *corev1.ConfigMap) spec.State {
	return spec.State(made.Data[keyState])
}

// consumersDir is where the event types with a verified consumer are mounted.
const consumersDir = "/etc/outbox/consumers"

// ConsumersConfigMap lists the event types with a verified consumer for the pods, which read it again while they run.
func ConsumersConfigMap(obd *v1alpha1.OutboxDispatcher, types []string) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(ConsumersName(obd), obd.Namespace).
		WithLabels(Labels(obd, ComponentDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithData(map[string]string{keyTypes: strings.Join(types, "\n")})
}

// ConsumersName is the name of the ConfigMap of [ConsumersConfigMap].
func ConsumersName(obd *v1alpha1.OutboxDispatcher) string { return Name(obd) + "-consumers" }

func stateName(obd *v1alpha1.OutboxDispatcher) string { return Name(obd) + "-state" }

// PodDisruptionBudget lets one pod go at a time. A single replica may always go, and so may a pod
// that is not ready: an outage of the database must not keep a node from being drained.
func PodDisruptionBudget(obd *v1alpha1.OutboxDispatcher) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	return policyv1ac.PodDisruptionBudget(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, ComponentDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(1)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(obd, ComponentDispatcher))))
}

// maxSpec bounds the JSON of the parts of a spec that may be large. The operator renders them.
const maxSpec = 256 << 10

// AnnotationPart is on an object in the cache of whose spec only a part is there.
const AnnotationPart = "outbox.dev/part"

// SpecTooLarge is the sentence about a spec that is too large, empty for another.
func SpecTooLarge(obd *v1alpha1.OutboxDispatcher) string {
	text, err := json.Marshal([]any{obd.Spec.Sink.Routes, obd.Spec.Message})
	if err != nil {
		panic(fmt.Sprintf("size of a spec: %v", err)) // plain data only
	}
	if len(text) <= maxSpec {
		return ""
	}
	return fmt.Sprintf("spec.sink.routes and spec.message have %d bytes of JSON, and %d are the most; put schemas into ConfigMaps, and make several dispatchers of one.", len(text), maxSpec)
}

// shortTopic is how long the short form of a topic is at most.
const shortTopic = 64

// ShortTopic is a topic in the cache, of a spec of which only a part is there: its beginning and a hash, where it is long.
func ShortTopic(topic string) string {
	if len(topic) <= shortTopic {
		return topic
	}
	return strings.ToValidUTF8(topic[:shortTopic-1-hashLength], "") + "#" + Hash(topic)
}

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
