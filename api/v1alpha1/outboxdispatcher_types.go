package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
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
