package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	// Manager owns what the operator applies: it is the field manager and the managed-by label.
	Manager = "outbox-operator"
	// Container is the name of the dispatcher's container; podTemplate addresses it by this name.
	Container = "dispatcher"
	// Port is where a dispatcher serves health, metrics and status.
	Port = 8080

	// LabelName says what an object is for: NameDispatcher or NameMigration.
	LabelName = "app.kubernetes.io/name"
	// LabelInstance is the OutboxDispatcher's name.
	LabelInstance = "app.kubernetes.io/instance"
	// LabelManagedBy is Manager on all that the operator makes; it caches nothing else.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelMigration is the hash of what a migration Job depends on.
	LabelMigration = "outbox.dev/migration"

	// AnnotationConfigHash is on the pod template: pods roll when it changes (CONTRACT C-102).
	AnnotationConfigHash = "outbox.dev/config-hash"
	// AnnotationAttempt is on a migration Job: 1 for the first, one more each time it is made again.
	AnnotationAttempt = "outbox.dev/attempt"

	// NameDispatcher is the LabelName of the workload.
	NameDispatcher = "outbox-dispatcher"
	// NameMigration is the LabelName of migration Jobs.
	NameMigration = "outbox-migration"
)

// Name is the name of the Deployment, its ServiceAccount, ConfigMap and PodDisruptionBudget.
func Name(obd *v1alpha1.OutboxDispatcher) string { return obd.Name + "-dispatcher" }

// Labels are those of an object of the name (NameDispatcher or NameMigration).
func Labels(obd *v1alpha1.OutboxDispatcher, name string) map[string]string {
	return map[string]string{LabelName: name, LabelInstance: obd.Name, LabelManagedBy: Manager}
}

// Selector selects the pods of the name. It never changes: a Deployment's selector must not.
func Selector(obd *v1alpha1.OutboxDispatcher, name string) map[string]string {
	return map[string]string{LabelName: name, LabelInstance: obd.Name}
}

// Replicas is how many dispatcher pods are asked for.
func Replicas(obd *v1alpha1.OutboxDispatcher) int32 {
	if obd.Spec.Replicas == nil {
		return 1
	}
	return *obd.Spec.Replicas
}

// Hash is a short digest of the values' JSON.
func Hash(values ...any) string {
	h := sha256.New()
	for _, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("hash of %T: %v", v, err)) // plain data only
		}
		h.Write(b)
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// owner makes the object go when the OutboxDispatcher goes. It does not block the owner's deletion,
// which would need a right on finalizers.
func owner(obd *v1alpha1.OutboxDispatcher) *metav1ac.OwnerReferenceApplyConfiguration {
	ref := metav1.NewControllerRef(obd, v1alpha1.GroupVersion.WithKind("OutboxDispatcher"))
	return metav1ac.OwnerReference().
		WithAPIVersion(ref.APIVersion).WithKind(ref.Kind).WithName(ref.Name).WithUID(ref.UID).WithController(true)
}
