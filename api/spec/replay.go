package spec

import "github.com/outbox-operator/outbox-operator/api/status"

// Replay says which dead letters, and what becomes of them.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, because the set is fixed when the replay begins; delete the object, which stops it, and create another"
// +kubebuilder:validation:XValidation:rule="has(self.dispatcherRef) != has(self.outboxRef)",message="exactly one of dispatcherRef and outboxRef must be set; set dispatcherRef to the name of an OutboxDispatcher, or outboxRef to that of an Outbox"
// +kubebuilder:validation:XValidation:rule="has(self.outboxRef) == has(self.namespace)",fieldPath=".namespace",message="namespace, the outbox namespace of the events, belongs to outboxRef and is needed with it; add it there, or remove it, because a dispatcher has its own"
// +kubebuilder:validation:XValidation:rule="self.action == 'Replay' || !has(self.canary) && !has(self.abortAt) && !has(self.expires)",fieldPath=".action",message="canary, abortAt and expires belong to action Replay, because the others send nothing; remove them"
type Replay struct {
	// dispatcherRef names the OutboxDispatcher whose dead letters these are: those
	// of its outbox namespace and topics. Exactly one of dispatcherRef and
	// outboxRef is set.
	// +optional
	DispatcherRef *DispatcherRef `json:"dispatcherRef,omitempty"`

	// outboxRef names the Outbox whose dead letters these are.
	// +optional
	OutboxRef *OutboxRef `json:"outboxRef,omitempty"`

	// namespace is the outbox namespace of the events, with outboxRef: the namespace
	// column of outbox_events, not a Kubernetes namespace.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// action is Replay (put the event back to pending, with its id, its dedupe key
	// and its place in the order, and a whole retry budget), Discard (mark the
	// dead letter as handled; the event stays dead, and blocks its key no more) or
	// Reopen (undo a discard, while the event is there and dead).
	// +required
	Action ReplayAction `json:"action,omitempty"`

	// reason is why, such as the number of the change. It stays with each dead letter.
	// At most 1024 bytes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 1024 && self.matches('[^[:space:]]')",message="reason must have words in it, and at most 1024 bytes; say why, such as CHG-812"
	Reason string `json:"reason,omitempty"`

	// requestedBy is the user who requests it: the name by which the API server knows
	// who creates the object. It stays with each dead letter. At most 1024 bytes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 1024 && self.matches('[^[:space:]]')",message="requestedBy must have words in it, and at most 1024 bytes; give your own user name, which `kubectl auth whoami` prints"
	RequestedBy string `json:"requestedBy,omitempty"`

	// selector chooses among the open dead letters: those that are neither
	// replayed nor discarded; for action Reopen among the discarded ones.
	// +required
	Selector DeadLetterSelector `json:"selector,omitzero"`

	// limit is how many dead letters at most, the oldest first. From 1 to 1000000000.
	// When not set: all.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	Limit int32 `json:"limit,omitempty"`

	// rate is the most events a second. From 1 to 100000. Defaults to 100.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Rate int32 `json:"rate,omitempty"`

	// canary is how many events go first, and alone, until the outcome of each is
	// known. One whose first attempt failed has failed. From 1 to 10000. When not set:
	// none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Canary int32 `json:"canary,omitempty"`

	// abortAt is the percentage of failures among the newest 100 outcomes, at which the
	// replay stops by itself: what waits stays open. It is looked at when the
	// outcomes of the canary are known, or of 10 events without one, and from then
	// on. From 1 to 100. When not set: 50.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	AbortAt int32 `json:"abortAt,omitempty"`

	// expires is for how long events whose time is over are worth sending again, from
	// their turn. From 1s to 8760h. When not set: a replay with such an event is refused.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="expires must be a duration from 1s to 8760h, such as 1h"
	Expires Duration `json:"expires,omitzero"`

	// dryRun counts what would be done (status.matched, status.skipped), and changes
	// nothing. Defaults to false.
	// +optional
	// +kubebuilder:default=false
	DryRun bool `json:"dryRun,omitempty"`

	// ttlAfterFinished is how long the object stays after it finished; its Job stays an hour.
	// From 0s to 87600h (10 years). When not set: until it is deleted.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",message="ttlAfterFinished must be a duration from 0s to 87600h, such as 168h for 7 days; leave it out to keep the object"
	TTLAfterFinished *Duration `json:"ttlAfterFinished,omitempty"`
}

// DispatcherRef names an OutboxDispatcher in the same Kubernetes namespace.
type DispatcherRef struct {
	// name is the OutboxDispatcher's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="name must be the name of an OutboxDispatcher: lower-case alphanumeric characters and dashes, such as orders"
	Name string `json:"name,omitempty"`
}

// ReplayAction is what is done with dead letters.
// +kubebuilder:validation:Enum=Replay;Discard;Reopen
type ReplayAction string

const (
	// ActionReplay puts the event back to pending.
	ActionReplay ReplayAction = "Replay"
	// ActionDiscard marks the dead letter as handled.
	ActionDiscard ReplayAction = "Discard"
	// ActionReopen undoes a discard.
	ActionReopen ReplayAction = "Reopen"
)

// DeadLetterSelector chooses dead letters. A dead letter is chosen when every member that is set fits it.
//
// +kubebuilder:validation:XValidation:rule="self.all != (has(self.group) || has(self.reason) || has(self.topics) && self.topics.size() > 0 || has(self.type) || has(self.aggregate) || has(self.tenant) || has(self.ids) && self.ids.size() > 0 || has(self.errorContains) || has(self.since) || has(self.until))",message="selector must choose dead letters, such as by group, or say all: true, and not both; add what is missing, or remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.since) || !has(self.until) || timestamp(self.since) < timestamp(self.until)",fieldPath=".until",message="until must be after since; exchange them"
type DeadLetterSelector struct {
	// all chooses every open dead letter, when nothing else is set. Defaults to false.
	// +optional
	// +kubebuilder:default=false
	All bool `json:"all,omitempty"`

	// group is the group that the dead letters are in, by its 8 hex digits: see
	// status.deadGroups of the dispatcher.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{8}$')",message="group must be the 8 hex digits of a group, as in status.deadGroups of the dispatcher, such as 7f3a9c21"
	Group string `json:"group,omitempty"`

	// reason is why the event is dead: MaxRetriesExceeded, PoisonMessage,
	// SchemaValidationFailed, ProcessingTimeout or PermanentFailure.
	// +optional
	// +kubebuilder:validation:Enum=MaxRetriesExceeded;PoisonMessage;SchemaValidationFailed;ProcessingTimeout;PermanentFailure
	Reason string `json:"reason,omitempty"`

	// topics are the events' topics. With dispatcherRef each must be one that the
	// dispatcher delivers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// type is the events' type.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Type string `json:"type,omitempty"`

	// aggregate is the id of the thing that the events are about, or its type and id
	// as TYPE/ID.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Aggregate string `json:"aggregate,omitempty"`

	// tenant is the events' tenant, a UUID.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$')",message="tenant must be a UUID, such as 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"
	Tenant string `json:"tenant,omitempty"`

	// ids are ids of events (UUIDs) or of dead letters (numbers).
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=36
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([1-9][0-9]{0,17}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$')",message="ids must be ids of events, which are UUIDs, or of dead letters, which are numbers; `dispatcher dead list` has both"
	IDs []string `json:"ids,omitempty"`

	// errorContains is a part of the last error, in upper or lower case.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ErrorContains string `json:"errorContains,omitempty"`

	// since is the earliest time at which the events became dead.
	// +optional
	Since status.Time `json:"since,omitzero"`

	// until is the time before which the events became dead.
	// +optional
	Until status.Time `json:"until,omitzero"`
}
