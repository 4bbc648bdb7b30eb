package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// Outbox is the database of a transactional outbox: how to reach it, who migrates its schema, and how
// long rows are kept. OutboxDispatchers of the same Kubernetes namespace refer to it by spec.outboxRef.
// The operator runs one migration Job for it, and reports here what its dispatchers see.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=outboxes,shortName=ob,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Schema",type=integer,JSONPath=`.status.schemaVersion`,description="Version of the outbox schema"
// +kubebuilder:printcolumn:name="Dispatchers",type=integer,JSONPath=`.status.dispatcherCount`,description="OutboxDispatchers that refer to it"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Rows due now, of all dispatchers"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.dead`,description="Unresolved dead rows, of all dispatchers"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of jobs; choose another name"
type Outbox struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec spec.Outbox `json:"spec,omitzero"`

	// status is the observed state.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status OutboxStatus `json:"status,omitzero"`
}

// OutboxList is a list of Outboxes.
//
// +kubebuilder:object:root=true
type OutboxList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Outbox `json:"items"`
}

// OutboxStatus is the observed state of an Outbox. The operator does not connect to the database: it reads the results
// of the migration Job and the status of the dispatchers.
type OutboxStatus struct {
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

	// migration is the state of the migration Job: Running, Failed (until an attempt
	// succeeds) or Succeeded. Absent when the operator does not migrate.
	// +optional
	// +kubebuilder:validation:Enum=Running;Failed;Succeeded
	Migration string `json:"migration,omitempty"`

	// schemaVersion is the version of the schema that a dispatcher saw last.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SchemaVersion *int64 `json:"schemaVersion,omitempty"`

	// dispatcherCount is the number of OutboxDispatchers that refer to the Outbox.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DispatcherCount *int32 `json:"dispatcherCount,omitempty"`

	// dispatchers are the OutboxDispatchers that refer to the Outbox, the first 64 by
	// name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Dispatchers []OutboxUser `json:"dispatchers,omitempty"`

	// pending is the number of rows that are due now, over all dispatchers. Above
	// 10000 it is an estimate. Rows of shared topics (see TopicsShared) are counted
	// for each dispatcher.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending *int64 `json:"pending,omitempty"`

	// dead is the number of unresolved dead rows, over all dispatchers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead *int64 `json:"dead,omitempty"`

	// retention is what was removed under spec.retention.
	// +optional
	Retention *status.RetentionTotals `json:"retention,omitempty"`

	// backlog is the backlog of each outbox namespace that a dispatcher has counted,
	// the first 64 by name.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=64
	Backlog []NamespaceBacklog `json:"backlog,omitempty"`
}

// OutboxUser is an OutboxDispatcher that refers to an Outbox.
type OutboxUser struct {
	// name is the name of the OutboxDispatcher.
	// +required
	// +kubebuilder:validation:MaxLength=48
	Name string `json:"name,omitempty"`

	// namespace is the outbox namespace whose events it delivers.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topics are the topics that it delivers, the first 16. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`
}

// NamespaceBacklog is the backlog of an outbox namespace.
type NamespaceBacklog struct {
	// namespace is the outbox namespace.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// pending is the number of rows that wait: due now, or for a retry.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int64 `json:"pending"`

	// dead is the number of unresolved dead rows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// oldestPending is when the row that has waited for longest was due first.
	// +optional
	OldestPending status.Time `json:"oldestPending,omitzero"`
}
