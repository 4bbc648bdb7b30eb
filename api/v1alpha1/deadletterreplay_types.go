package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// DeadLetterReplay puts dead events back, marks their dead letters as handled, or undoes that: a set of dead letters,
// chosen by a selector. The operator runs one Job for it, with a login of its own (spec.replayLogin of the Outbox), and
// reports here how far it is. The set is fixed when the Job begins.
//
// Deleting the object stops it after the batch that is under way: the dead letters that wait stay open.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=deadletterreplays,shortName=dlr,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`,description="True when each dead letter of the set has its outcome"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=`.status.matched`,description="Size of the set"
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.done`,description="Dead letters that were put back, discarded or reopened"
// +kubebuilder:printcolumn:name="Delivered",type=integer,JSONPath=`.status.delivered`,description="Events that were put back, and are delivered"
// +kubebuilder:printcolumn:name="Dead-Again",type=integer,JSONPath=`.status.deadAgain`,description="Events that were put back, and are dead again"
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.requestedBy`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.spec.reason`,priority=1,description="The reason that was given"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of Jobs; choose another name"
type DeadLetterReplay struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the request. It cannot be changed.
	// +required
	Spec spec.Replay `json:"spec,omitzero"`

	// status is what was observed.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status DeadLetterReplayStatus `json:"status,omitzero"`
}

// DeadLetterReplayList is a list of DeadLetterReplays.
//
// +kubebuilder:object:root=true
type DeadLetterReplayList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []DeadLetterReplay `json:"items"`
}

// DeadLetterReplayStatus is what was observed. The operator opens no connection to the database: what is known comes
// from the Job's pod, at most every 10 seconds while it runs, and from what it leaves when it ends.
type DeadLetterReplayStatus struct {
	// observedGeneration is the generation that this status is about, -1 when the
	// operator has not looked at the object yet.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// operator is the namespace of the operator that manages this object. Another one
	// leaves the object alone, until this is null.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Operator string `json:"operator,omitempty"`

	// conditions say what works, such as Complete and SourceReachable, and what does not, such
	// as Stalled. Reason is the cause in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// id is the replay's id in the database, in outbox_replays: the object's
	// UID. A dry run has none.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	ID string `json:"id,omitempty"`

	// How far it is. Absent until its set is fixed.
	*status.Progress `json:",inline"`

	// done counts the dead letters that were put back, discarded or reopened: those
	// that are pending, failing, delivered, deadAgain, discarded or reopened.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Done *int64 `json:"done,omitempty"`
}
