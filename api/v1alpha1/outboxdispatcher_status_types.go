package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// OutboxDispatcherStatus is the observed state of an OutboxDispatcher.
type OutboxDispatcherStatus struct {
	// observedGeneration is the generation that the operator observed last. It is -1
	// before the first observation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// operator is the namespace of the operator that manages this object. Another one
	// leaves the object alone, until this is null.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Operator string `json:"operator,omitempty"`

	// conditions say what works, such as Ready and SourceReachable, and what does not, such
	// as Stalled. Reason is the cause in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The counts of rows. Absent until a pod has counted.
	*status.Counts `json:",inline"`

	// deadGroups groups the dead rows by topic, reason and cause, the largest group
	// first. At most 20.
	// +optional
	// +listType=map
	// +listMapKey=group
	// +kubebuilder:validation:MaxItems=20
	DeadGroups []status.DeadGroup `json:"deadGroups,omitempty"`

	// blockedKeys is the number of keys that wait for an unresolved dead row. Only
	// with onDead Block.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BlockedKeys *int64 `json:"blockedKeys,omitempty"`

	// observedTime is when the counts were taken, on the database's clock. Unchanged
	// counts may be ten minutes old. Older ones mean that no pod responds, or that the
	// operator does not run.
	// +optional
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`

	// lateSince is when the events became later than objective.freshness. Absent while
	// they are not, and while the dispatcher is stopped.
	// +optional
	LateSince status.Time `json:"lateSince,omitzero"`

	// eta is the time until the pending rows are delivered at the present pace, such as
	// 4m, 3h or >1d; never when they do not become fewer. Empty when the pods
	// deliver all of them within 10 seconds, and when it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ETA string `json:"eta,omitempty"`

	// limitedBy is what keeps most of the pods from delivering more: Concurrency,
	// Database, Rate, Destination, Order, Consumer, or Idle when nothing is due. Empty
	// when no pod reports it.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	LimitedBy string `json:"limitedBy,omitempty"`

	// scaling is the number of pods that the backlog needs. Only with
	// spec.pods.scaling.
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`

	// retention is what was removed under spec.retention of the Outbox, or under the
	// defaults.
	// +optional
	Retention *status.RetentionTotals `json:"retention,omitempty"`

	// schemaVersion is the version of the outbox schema that a pod saw last.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SchemaVersion *int64 `json:"schemaVersion,omitempty"`

	// eventTypes are the types of the events that were claimed in the last 30 days. At
	// most 64.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	EventTypes []status.EventType `json:"eventTypes,omitempty"`

	// sink is the kind of the sink.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Sink string `json:"sink,omitempty"`

	// replicas is the number of dispatcher pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas int32 `json:"replicas"`

	// readyReplicas is the number of dispatcher pods that are ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReadyReplicas int32 `json:"readyReplicas"`

	// respondingReplicas is the number of dispatcher pods whose status the operator
	// has read recently.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RespondingReplicas int32 `json:"respondingReplicas"`

	// pods is readyReplicas of those that are wanted, such as 1/2.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Pods string `json:"pods,omitempty"`

	// selector selects the dispatcher pods, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
}
