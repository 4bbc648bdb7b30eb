package spec

// Validation is what the payload of some events must be like. An event that breaks it is dead at once,
// with schema_validation_failed, and nothing of it is sent (CONTRACT C-72). Every entry that is for an
// event's type holds.
//
// +kubebuilder:object:generate=false
type Validation struct {
	// Types are the event types that it is for, at most 256. One that ends with * is for all types that begin
	// so, such as order.*. None means all.
	Types []string `json:"types,omitempty"`
	// Versions are the versions of events that it is for, at most 64: the header event_version, else schema_version,
	// else 1.0.0. One that ends with * is for all that begin so. When an entry of the type has Schema and Versions, an event
	// whose version no such entry names is refused, also where another entry has a schema for all versions. None means all.
	Versions []string `json:"versions,omitempty"`
	// Schema is a JSON Schema that payloads must fit. Defaults to none.
	Schema *PayloadSchema `json:"schema,omitempty"`
	// Rules must all hold, at most 32. There must be a schema or a rule.
	Rules []Rule `json:"rules,omitempty"`
}

// PayloadSchema says where a JSON Schema is, of draft 7 or 2020-12, as its $schema says (2020-12 when it
// says nothing). Exactly one member must be set.
//
// +kubebuilder:object:generate=false
type PayloadSchema struct {
	// Inline is the schema itself, as JSON. All schemas of a dispatcher have at most 256 KiB together.
	Inline string `json:"inline,omitempty"`
	// File holds the schema, as JSON. It is read again when it changes: a schema that compiles is used from the
	// next event on, and one that does not leaves the one before it.
	File string `json:"file,omitempty"`
	// Registry names it in the schema registry, which message.schemaRegistry must say how to reach.
	Registry *RegistrySchema `json:"registry,omitempty"`
}

// RegistrySchema is a version of a subject in the schema registry.
type RegistrySchema struct {
	// subject is the name of the subject.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Subject string `json:"subject,omitempty"`

	// version is a version of the subject. When not set: the latest, refreshed as
	// spec.message.schemaRegistry says.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version,omitempty"`
}

// Rule is a condition that payloads must meet.
type Rule struct {
	// rule is a CEL expression over event and payload that returns a bool, such as
	// 'payload.total > 0 || has(payload.voucher)'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Rule string `json:"rule,omitempty"`

	// message is the error when the rule is false.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
