package spec

import "fmt"

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

const (
	maxExpression = 4096
	maxInline     = 256 << 10
)

func (c Config) validateValidation(p *problems) {
	p.when(len(c.Message.Validation) > maxSteps, "message.validation", "has %d entries; keep at most %d", len(c.Message.Validation), maxSteps)
	for i, v := range c.Message.Validation {
		field := fmt.Sprintf("message.validation[%d]", i)
		p.types(field, v.Types)
		p.when(len(v.Versions) > 64, field+".versions", "has %d entries; list at most 64, or none for all", len(v.Versions))
		for j, version := range v.Versions {
			p.length(fmt.Sprintf("%s.versions[%d]", field, j), version, 64)
		}
		p.when(v.Schema == nil && len(v.Rules) == 0, field, "checks nothing; set schema or rules, or remove it")
		if v.Schema != nil {
			v.Schema.validate(p, field+".schema", c.Message.SchemaRegistry != nil)
		}
		p.when(len(v.Rules) > 32, field+".rules", "has %d entries; keep at most 32", len(v.Rules))
		for j, r := range v.Rules {
			at := fmt.Sprintf("%s.rules[%d]", field, j)
			p.length(at+".rule", r.Rule, maxExpression)
			p.length(at+".message", r.Message, 1024)
		}
	}
}

func (s *PayloadSchema) validate(p *problems, field string, registry bool) {
	p.exactlyOne(field, map[string]bool{"inline": s.Inline != "", "file": s.File != "", "registry": s.Registry != nil})
	p.when(len(s.Inline) > maxInline, field+".inline", "has more than %d bytes; shorten it", maxInline)
	if r := s.Registry; r != nil {
		p.length(field+".registry.subject", r.Subject, 255)
		p.when(r.Version < 0, field+".registry.version", "is %d; set it to 1 or more, or leave it out for the latest", r.Version)
		p.when(!registry, "message.schemaRegistry", "is missing, and %s.registry needs it; add it, or set inline or file", field)
	}
}

// ValidatePipeline is [Config.Validate] for sink.routes and message. It fails as Validate does.
func (c Config) ValidatePipeline() error {
	var p problems
	c.Sink.validateRoutes(&p)
	c.validateValidation(&p)
	c.validateTransform(&p)
	setDefault(&c.Message.Format, FormatCloudEvents)
	c.validateMessage(&p)
	return p.join()
}
