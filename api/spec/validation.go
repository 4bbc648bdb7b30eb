package spec

// Validation is what the payload of some events must be like. An event that does not meet it is dead at once, with the
// reason schema_validation_failed: it is neither sent nor retried.
//
// +kubebuilder:validation:XValidation:rule="has(self.schema) || has(self.rules) && self.rules.size() > 0",message="validation must check something; add schema or rules, or remove the entry"
type Validation struct {
	// types are the event types that the entry applies to. One that ends with * stands
	// for all types that begin with the text before it, such as order.*. Empty means
	// all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Types []string `json:"types,omitempty"`

	// versions are the event versions that the entry applies to: the header
	// event_version, else schema_version, else 1.0.0. One that ends with * stands for
	// all that begin with the text before it. Where entries of a type name versions
	// with a schema, an event of another version is refused. An entry for all versions
	// does not admit it. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Versions []string `json:"versions,omitempty"`

	// schema is the JSON Schema that payloads must fit. When not set: none.
	// +optional
	Schema *PayloadSchema `json:"schema,omitempty"`

	// rules must all be true.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Rules []Rule `json:"rules,omitempty"`
}

// PayloadSchema names a JSON Schema: exactly one of its members. Its $schema is draft 7 or 2020-12, which is the
// default.
//
// +kubebuilder:validation:XValidation:rule="[has(self.inline), has(self.configMapRef), has(self.registry)].filter(set, set).size() == 1",message="schema must have exactly one of inline, configMapRef and registry; add the one that has the JSON Schema, or remove the others"
type PayloadSchema struct {
	// inline is the schema itself, as JSON.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Inline string `json:"inline,omitempty"`

	// configMapRef is the ConfigMap that holds the schema, as JSON. Pods read it again
	// when it changes; a schema that does not compile is not used. Its key, when not
	// set: schema.json.
	// +optional
	ConfigMapRef *ConfigMapRef `json:"configMapRef,omitempty"`

	// registry is the schema in the schema registry; see spec.message.schemaRegistry.
	// +optional
	Registry *RegistrySchema `json:"registry,omitempty"`

	// File has what configMapRef names, where a process reads it.
	File string `json:"-"`
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
