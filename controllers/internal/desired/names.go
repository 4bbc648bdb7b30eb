package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	// Manager owns what the operator applies: it is the field manager and the managed-by label.
	Manager = "outbox-operator"
	// Container is the name of the dispatcher's container; pods.template addresses it by this name.
	Container = "dispatcher"
	// Port is where a dispatcher serves health, metrics and status.
	Port = 8080

	// Prefix of the operator's own labels and annotations.
	Prefix = "outbox.dev/"
	// LabelDispatcher is the OutboxDispatcher's name.
	LabelDispatcher = "outbox.dev/dispatcher"
	// LabelOutbox is the Outbox's name, on what is made for one.
	LabelOutbox = "outbox.dev/outbox"
	// LabelReplay is the DeadLetterReplay's name, on what is made for one.
	LabelReplay = "outbox.dev/replay"
	// LabelComponent says what an object is for: one of the components below.
	LabelComponent = "outbox.dev/component"
	// LabelManagedBy is Manager on all that the operator makes; it caches nothing else.
	LabelManagedBy = "outbox.dev/managed-by"
	// LabelMigration is the hash of what a migration Job depends on.
	LabelMigration = "outbox.dev/migration"

	// AnnotationState on a pod is the state that the operator has last set for it: Running or Paused.
	AnnotationState = "outbox.dev/state"
	// AnnotationConsumers on a pod is the hash of the event types with a verified consumer.
	AnnotationConsumers = "outbox.dev/consumers"
	// AnnotationScaledBy is on an OutboxDispatcher in the cache: who has set spec.replicas by the scale subresource.
	AnnotationScaledBy = "outbox.dev/scaled-by"
	// AnnotationOthers is on a Deployment in the cache: see [Others].
	AnnotationOthers = "outbox.dev/others"
	// AnnotationReplay is on a DeadLetterReplay that has begun: its UID. One that was made from a backup has another's.
	AnnotationReplay = "outbox.dev/replay-uid"
	// AnnotationGeneration is on a Deployment: the generation of the OutboxDispatcher that it was made of, and after a
	// slash that of its Outbox.
	AnnotationGeneration = "outbox.dev/generation"
	// AnnotationSpec is on a Deployment: the hash of the OutboxDispatcher's spec that it was made of, without what rolls no pod.
	AnnotationSpec = "outbox.dev/spec"
	// AnnotationTemplate is on a Deployment: the hash of the pod template that was applied; and on a pod template in the
	// cache: the hash of what is left out there.
	AnnotationTemplate = "outbox.dev/template"
	// AnnotationAttempt is on such a Job: 1 for the first, one more each time it is made again. A DeadLetterReplay has it
	// when its Job was made again.
	AnnotationAttempt = "outbox.dev/attempt"

	// ComponentDispatcher is the workload.
	ComponentDispatcher = "dispatcher"
	// ComponentMigration are migration Jobs.
	ComponentMigration = "migration"
	// ComponentReplay are the Job of a DeadLetterReplay, and its files.
	ComponentReplay = "replay"
)

// Owner is what objects are made for: an OutboxDispatcher, an Outbox or a DeadLetterReplay.
type Owner interface {
	metav1.Object
	runtime.Object
}

// Kinds of owners.
const (
	kindOutboxDispatcher = "OutboxDispatcher"
	kindOutbox           = "Outbox"
	kindDeadLetterReplay = "DeadLetterReplay"
)

// Kind is the owner's.
func Kind(o Owner) string {
	switch o.(type) {
	case *v1alpha1.Outbox:
		return kindOutbox
	case *v1alpha1.DeadLetterReplay:
		return kindDeadLetterReplay
	}
	return kindOutboxDispatcher
}

// Name is the name of the Deployment, its ServiceAccount and PodDisruptionBudget, and the beginning of
// its ConfigMaps' names.
func Name(obd *v1alpha1.OutboxDispatcher) string { return obd.Name + "-dispatcher" }

// Labels returns the labels of an object of the component. The operator finds its objects by [Selector] and
// LabelManagedBy; the recommended ones of Kubernetes are for people, and a pod template may have others.
func Labels(o Owner, component string) map[string]string {
	return map[string]string{
		labelOwner(o):  o.GetName(),
		LabelComponent: component,
		LabelManagedBy: Manager,

		"app.kubernetes.io/name":       "outbox-" + component,
		"app.kubernetes.io/instance":   o.GetName(),
		"app.kubernetes.io/managed-by": Manager,
	}
}

// Selector selects the objects of the component. It never changes: a Deployment's selector must not.
func Selector(o Owner, component string) map[string]string {
	return map[string]string{labelOwner(o): o.GetName(), LabelComponent: component}
}

func labelOwner(o Owner) string {
	switch Kind(o) {
	case kindOutbox:
		return LabelOutbox
	case kindDeadLetterReplay:
		return LabelReplay
	}
	return LabelDispatcher
}

// Replicas is the number of dispatcher pods: that of the spec, which is 1 by default; or with the scaling mode Apply the
// recommended one, and before there is any that of the spec, within the bounds of the scaling. 0 in the spec is always 0.
func Replicas(obd *v1alpha1.OutboxDispatcher) int32 {
	n := ptr.Deref(obd.Spec.Replicas, 1)
	scaling := obd.Spec.Pods.Scaling
	if n == 0 || scaling == nil || scaling.Mode != spec.ScalingApply {
		return n
	}
	if now := obd.Status.Scaling; now != nil && now.Recommended > 0 {
		n = now.Recommended
	}
	return max(scaling.Min, 1, min(n, scaling.Max))
}

const hashLength = 16

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
	return hex.EncodeToString(h.Sum(nil))[:hashLength]
}

// owner makes the object go when its owner goes. It does not block the owner's deletion,
// which would need a right on finalizers.
func owner(o Owner) *metav1ac.OwnerReferenceApplyConfiguration {
	ref := metav1.NewControllerRef(o, v1alpha1.GroupVersion.WithKind(Kind(o)))
	return metav1ac.OwnerReference().
		WithAPIVersion(ref.APIVersion).WithKind(ref.Kind).WithName(ref.Name).WithUID(ref.UID).WithController(true)
}
