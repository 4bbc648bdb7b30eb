package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// OutboxConsumer registers a consumer of events: who owns it, which events it handles, how it handles a
// duplicate, and the evidence of that. It lives in the Kubernetes namespace of the dispatchers that feed it, wherever
// the consumer itself runs. The operator runs nothing for it: it compares what is registered with what is delivered.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=outboxconsumers,shortName=oc,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.eventTypes`
// +kubebuilder:printcolumn:name="Team",type=string,JSONPath=`.spec.ownerTeam`
// +kubebuilder:printcolumn:name="Verified",type=string,JSONPath=`.status.verified`,description="Checks of verify-consumer that passed, of those there are, and the day"
// +kubebuilder:printcolumn:name="Evidence",type=string,JSONPath=`.status.conditions[?(@.type=="Verified")].reason`,description="Verified, or what the evidence lacks"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.status.consumerID`,priority=1
// +kubebuilder:printcolumn:name="Mechanism",type=string,JSONPath=`.spec.idempotencyMechanism`,priority=1
// +kubebuilder:printcolumn:name="Retention",type=string,JSONPath=`.spec.retention`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
type OutboxConsumer struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the registration.
	// +required
	Spec OutboxConsumerSpec `json:"spec,omitzero"`

	// status is the observed state.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status OutboxConsumerStatus `json:"status,omitzero"`
}

// OutboxConsumerList is a list of OutboxConsumers.
//
// +kubebuilder:object:root=true
type OutboxConsumerList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []OutboxConsumer `json:"items"`
}

// OutboxConsumerSpec is the registration of a consumer (RULE-010-040).
//
// +kubebuilder:validation:XValidation:rule="has(self.retention) || !(self.idempotencyMechanism in ['ProcessedEvents', 'IdempotencyKey'])",fieldPath=".retention",message="retention is needed with ProcessedEvents and IdempotencyKey, because the ids or keys are forgotten one day; set it to how long they are kept, such as 168h"
// +kubebuilder:validation:XValidation:rule="self.idempotencyMechanism != 'Other' || has(self.idempotencyNote)",fieldPath=".idempotencyNote",message="idempotencyNote is needed with Other; say in a sentence how a duplicate is handled"
// +kubebuilder:validation:XValidation:rule="!has(self.evidence) || has(oldSelf.evidence) && oldSelf.evidence == self.evidence || self.eventTypes.exists(t, t.endsWith('*') ? self.evidence.eventType.startsWith(t.substring(0, t.size() - 1)) : self.evidence.eventType == t)",fieldPath=".evidence",message="the evidence is about events of a type that eventTypes does not have; run verify-consumer with --type for one of them, or register the type"
type OutboxConsumerSpec struct {
	// consumerID is the id under which the consumer records handled events:
	// consumer_id in processed_events. Unique in the Kubernetes namespace. When not
	// set: the object's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ConsumerID string `json:"consumerID,omitempty"`

	// eventTypes are the event types that the consumer handles. One that ends with *
	// stands for all types that begin with the text before it; * alone for all.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^*]*[*]?$')",message="eventTypes may have a * at the end alone, such as order.*; write the type out, or its beginning and *"
	EventTypes []string `json:"eventTypes,omitempty"`

	// ownerTeam is the team that is responsible for the consumer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	OwnerTeam string `json:"ownerTeam,omitempty"`

	// idempotencyMechanism is how the consumer handles a duplicate: ProcessedEvents
	// (the ids of handled events are kept in a table, written with the effect),
	// UniqueKey (the effect has a unique key that is made of the event's id, and is
	// never removed), IdempotencyKey (the system that carries out the effect knows the
	// event's key), NaturallyIdempotent (a second time changes nothing), or Other.
	// +required
	IdempotencyMechanism IdempotencyMechanism `json:"idempotencyMechanism,omitempty"`

	// idempotencyNote describes the mechanism. Required with Other.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	IdempotencyNote string `json:"idempotencyNote,omitempty"`

	// retention is how long the consumer remembers handled events: how long rows of
	// processed_events, or idempotency keys, are kept. From 1m to 876000h (100 years).
	// Required with ProcessedEvents and IdempotencyKey. When not set: for ever.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('876000h')",message="retention must be a duration from 1m to 876000h, such as 168h for 7 days"
	Retention spec.Duration `json:"retention,omitzero"`

	// dispatcherRefs name the OutboxDispatchers that feed the consumer. Empty means
	// all of the Kubernetes namespace.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	DispatcherRefs []spec.DispatcherRef `json:"dispatcherRefs,omitempty"`

	// documentation is the URL of the page that describes the mechanism.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:]')",message="documentation must be a URL with http or https and a host, such as https://wiki.example.com/billing"
	Documentation string `json:"documentation,omitempty"`

	// endpoint is the URL that receives the events, for a consumer over HTTP. The
	// operator sends nothing to it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:]') && !self.contains('@')",message="endpoint must be a URL with http or https and a host, and without a password, such as https://billing.example.com/events"
	Endpoint string `json:"endpoint,omitempty"`

	// evidenceMaxAge is how long evidence is valid. From 1h to 87600h. Defaults to
	// 2160h.
	// +optional
	// +kubebuilder:default="2160h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="evidenceMaxAge must be a duration from 1h to 87600h, such as 2160h for 90 days"
	EvidenceMaxAge spec.Duration `json:"evidenceMaxAge,omitzero"`

	// evidence is what the last report of `dispatcher verify-consumer` proves: its
	// --evidence writes the patch. Only who has the verb verify may change it. Leave it
	// out of files under version control. When not set: the consumer is not verified.
	// +optional
	Evidence *ConsumerEvidence `json:"evidence,omitempty"`
}

// IdempotencyMechanism is how a consumer handles a duplicate.
// +kubebuilder:validation:Enum=ProcessedEvents;UniqueKey;IdempotencyKey;NaturallyIdempotent;Other
type IdempotencyMechanism string

const (
	// IdempotencyProcessedEvents keeps the ids of handled events in a table, written with the effect.
	IdempotencyProcessedEvents IdempotencyMechanism = "ProcessedEvents"
	// IdempotencyUniqueKey gives the effect a unique key that is made of the event's id, and never removed.
	IdempotencyUniqueKey IdempotencyMechanism = "UniqueKey"
	// IdempotencyKey passes the event's key to the system that carries out the effect.
	IdempotencyKey IdempotencyMechanism = "IdempotencyKey"
	// IdempotencyNatural has effects that a second time does not change.
	IdempotencyNatural IdempotencyMechanism = "NaturallyIdempotent"
	// IdempotencyOther is described in the note.
	IdempotencyOther IdempotencyMechanism = "Other"
)

// OutboxConsumerStatus is the observed state of a consumer.
type OutboxConsumerStatus struct {
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

	// conditions say what works, such as Ready and Verified, and what does not, such as
	// Stalled. Reason is the cause in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// consumerID is spec.consumerID, or the object's name.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	ConsumerID string `json:"consumerID,omitempty"`

	// verified summarizes the evidence: the checks that passed, of all, and the day,
	// such as 11/13 2026-11-20.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verified string `json:"verified,omitempty"`
}

// ConsumerEvidence is a summary of a report of `dispatcher verify-consumer`.
//
// +kubebuilder:validation:XValidation:rule="self.verifiedAt >= oldSelf.verifiedAt",fieldPath=".verifiedAt",message="evidence that is newer is registered already; give the newest"
type ConsumerEvidence struct {
	// verifiedAt is when the checks ended.
	// +required
	VerifiedAt metav1.Time `json:"verifiedAt,omitzero"`

	// eventType is the type of the events that the checks sent.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	EventType string `json:"eventType,omitempty"`

	// checks is the number of all checks, whether run or not.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Checks int32 `json:"checks,omitempty"`

	// passed is the number of checks that passed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Passed int32 `json:"passed"`

	// uncounted is the number of checks that passed without a count of the effects.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Uncounted int32 `json:"uncounted"`

	// brokenRules are the ids of the rules that the consumer breaks, such as
	// RULE-010-012.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	BrokenRules []string `json:"brokenRules,omitempty"`

	// notTried are the rules, each with a check in parentheses, that were not tried
	// although the consumer does not declare them to be without meaning, such as
	// RULE-010-031 (effect before the check). It is not verified while there are some.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	NotTried []string `json:"notTried,omitempty"`

	// leftOut are the same for checks that are optional, or that the consumer
	// declares to be without meaning.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	LeftOut []string `json:"leftOut,omitempty"`
}
