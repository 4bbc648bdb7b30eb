package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OutboxDispatcherStatus is what was observed.
type OutboxDispatcherStatus struct {
	// observedGeneration is the generation that this status is about, -1 when the
	// operator has not looked at the object yet.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions say what works: Ready (events are delivered, or would be),
	// ReferencesResolved, SchemaReady, SourceReachable, SinkReachable,
	// WorkloadAvailable, DataHealthy; and what does not: TopicsHeld, TopicsShared,
	// TypesUnregistered, DeadLettersPresent, VacuumHeldBack, Reconciling, Stalled.
	// Reason is the cause in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// pending counts rows that are due now. Above 10000 it is an estimate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending *int64 `json:"pending,omitempty"`

	// scheduled counts rows that are due later: delayed by their producer, or
	// waiting for a retry.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Scheduled *int64 `json:"scheduled,omitempty"`

	// retrying counts those of scheduled that wait for a retry after a failure. The
	// others were delayed by their producers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Retrying *int64 `json:"retrying,omitempty"`

	// processing counts rows that a dispatcher holds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Processing *int64 `json:"processing,omitempty"`

	// dead counts rows that were given up and that no person has handled yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead *int64 `json:"dead,omitempty"`

	// deadGroups are the groups of such rows, those with one topic, reason and cause,
	// the largest first; at most 20.
	// +optional
	// +listType=map
	// +listMapKey=group
	// +kubebuilder:validation:MaxItems=20
	DeadGroups []DeadGroup `json:"deadGroups,omitempty"`

	// blockedKeys counts the keys whose rows wait behind a dead one that no person
	// has handled yet. Only with onDead Block.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BlockedKeys *int64 `json:"blockedKeys,omitempty"`

	// estimated is true when one of the counts is an estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// oldestPending is the creation time of the pending row that is due first.
	// +optional
	OldestPending *metav1.Time `json:"oldestPending,omitempty"`

	// observedTime is when the counts were taken, on the database's clock. It stays
	// for up to ten minutes while they stay the same. An older one means that no pod
	// answers, or that the operator does not work.
	// +optional
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`

	// retention is what was removed after spec.database.retention, or after that of
	// the Outbox.
	// +optional
	Retention *RetentionStatus `json:"retention,omitempty"`

	// schemaVersion is the version of the outbox schema that a pod has seen last.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SchemaVersion *int64 `json:"schemaVersion,omitempty"`

	// eventTypes are the types of the events that were claimed in the last 30 days,
	// at most 64.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	EventTypes []SeenEventType `json:"eventTypes,omitempty"`

	// sink names the kind of sink.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Sink string `json:"sink,omitempty"`

	// replicas counts the dispatcher pods; readyReplicas those that are ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas int32 `json:"replicas"`

	// readyReplicas counts the dispatcher pods that are ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReadyReplicas int32 `json:"readyReplicas"`

	// respondingReplicas counts the dispatcher pods that answered the operator of
	// late.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RespondingReplicas int32 `json:"respondingReplicas"`

	// pods is readyReplicas of spec.replicas, as in 1/2.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Pods string `json:"pods,omitempty"`

	// selector selects the dispatcher pods, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
}

// SeenEventTypes is the most event types in the status of an OutboxDispatcher.
const SeenEventTypes = 64

// SeenEventType is a type of events that a dispatcher has claimed.
type SeenEventType struct {
	// type is the event type.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Type string `json:"type,omitempty"`

	// lastSeen is the day of the last one, in UTC.
	// +required
	LastSeen metav1.Time `json:"lastSeen,omitzero"`
}
