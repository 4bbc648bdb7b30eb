package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
)

// OutboxDispatcher delivers the events of one namespace of a transactional outbox to one sink. The operator runs a
// Deployment of dispatchers for it and reports their state here.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=obd,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Rows that wait: due now, or for a retry; an estimate above 10,000"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.dead`,description="Unresolved dead rows"
// +kubebuilder:printcolumn:name="Oldest",type=date,JSONPath=`.status.oldestPending`,description="How long the row that has waited for longest has waited since it was due first"
// +kubebuilder:printcolumn:name="ETA",type=string,JSONPath=`.status.eta`,description="When the pending rows are delivered at this pace; empty when none waits for long, or it is not known"
// +kubebuilder:printcolumn:name="Estimated",type=boolean,JSONPath=`.status.estimated`,description="Whether a count is an estimate, as one above 10,000 is"
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.pods`,description="Dispatcher pods that are ready, of those that are wanted"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Sink",type=string,JSONPath=`.status.sink`,priority=1
// +kubebuilder:printcolumn:name="Outbox",type=string,JSONPath=`.spec.namespace`,priority=1,description="The outbox namespace, not the Kubernetes one"
// +kubebuilder:printcolumn:name="Topics",type=string,JSONPath=`.spec.topics`,priority=1,description="Empty means all"
// +kubebuilder:printcolumn:name="Scheduled",type=integer,JSONPath=`.status.scheduled`,priority=1,description="Rows that their producers delayed, and that were never due; an estimate above 10,000"
// +kubebuilder:printcolumn:name="Processing",type=integer,JSONPath=`.status.processing`,priority=1,description="Rows that dispatchers have claimed"
// +kubebuilder:printcolumn:name="Blocked",type=integer,JSONPath=`.status.blockedKeys`,priority=1,description="Keys that wait behind a dead row, with onDead Block"
// +kubebuilder:printcolumn:name="Limited By",type=string,JSONPath=`.status.limitedBy`,priority=1,description="What keeps the pods from delivering more"
// +kubebuilder:printcolumn:name="Observed",type=date,JSONPath=`.status.observedTime`,priority=1,description="Age of the counts; more than 10 minutes means that no pod reports them"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of pods and jobs; choose another name"
type OutboxDispatcher struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec spec.Dispatcher `json:"spec,omitzero"`

	// status is the observed state.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status OutboxDispatcherStatus `json:"status,omitzero"`
}

// OutboxDispatcherList is a list of OutboxDispatchers.
//
// +kubebuilder:object:root=true
type OutboxDispatcherList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []OutboxDispatcher `json:"items"`
}

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

// ScalingStatus is the number of pods that the backlog needs.
type ScalingStatus struct {
	// recommended is the number of pods that the backlog needs. It stays as it was
	// while the counts are unknown or old.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Recommended int32 `json:"recommended,omitempty"`

	// reason is why recommended has its value, in one word: Sufficient, Waiting (for
	// the pods of the last step), NotObserved, Held (paused, no pods, or a rollout), or
	// the reason of the condition ScalingLimited.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// perPod is how many events a second a pod delivers while events wait for it,
	// rounded to two significant digits. When not set: it is not known yet.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PerPod string `json:"perPod,omitempty"`

	// lastStep is the last change of recommended.
	// +optional
	LastStep *ScalingStep `json:"lastStep,omitempty"`
}

// ScalingStep is a change of the number of pods.
type ScalingStep struct {
	// time is when it was decided.
	// +required
	Time metav1.Time `json:"time,omitzero"`

	// from is the number before.
	// +optional
	// +kubebuilder:validation:Minimum=0
	From int32 `json:"from,omitempty"`

	// to is the number since.
	// +optional
	// +kubebuilder:validation:Minimum=0
	To int32 `json:"to,omitempty"`
}
